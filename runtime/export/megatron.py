"""Plans for Megatron-LM: the arguments of its pipeline layout."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ...instances import InputError, Plan, Workload
from ...instances.common.escape import one_line, shell
from .stack import first_number, stack
from .stages import ModuleStages, module_stages

NAME = "megatron"
#: Those that it runs.
SCHEDULES = ("1f1b", "interleaved")

#: Embedding, decoder layer, layer of multi-token prediction, and head with the loss.
_EMBEDDING, _LAYER, _AHEAD, _LOSS = "E", "t", "m", "L"
#: Names of the modules that predict tokens after the next one.
_AHEAD_PART = re.compile(r"mtp(_|$)|multi_token").match


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the stages of layers, with the embedding on the first and the loss on the last.

    Raises `InputError` if Megatron-LM cannot express the plan.
    """
    stages = module_stages(workload, plan, NAME, unit, rounds=True, schedules=SCHEDULES)
    counts = _counts(stages)
    for what, column in (("before the first layer", 0), ("after the last layer", 2)):
        places = [s for s, count in enumerate(counts) if count[column]]
        if len(places) > 1:
            raise InputError(
                f"{NAME}: what comes {what} is on stages {places[0]} and {places[-1]}; it keeps "
                "it on one"
            )
    _check_ahead(stages, counts)
    return stages


def write(stages: ModuleStages) -> str:
    """Return arguments for a shell: source the file, then pass ``"${MEGATRON_ARGS[@]}"``."""
    counts = _counts(stages)
    first, last = _ends(counts)
    ahead = [_ahead(own) for own in stages.modules]
    layout = "|".join(
        _EMBEDDING * (s == first)
        + repeated(_LAYER, layers)
        + repeated(_AHEAD, ahead[s])
        + _LOSS * (s == last)
        for s, (_, layers, _) in enumerate(counts)
    )
    world = stages.ranks * stages.replicas * stages.degree
    arguments = [
        f"--num-layers {sum(layers for _, layers, _ in counts)}",
        f"--tensor-model-parallel-size {stages.degree}",
        f"--pipeline-model-parallel-size {stages.ranks}",
        f"--pipeline-model-parallel-layout {shell(layout)}",
    ]
    if any(ahead):
        arguments.append(f"--mtp-num-layers {sum(ahead)}")
    if stages.microbatches:  # of one sample each, unless both sizes are multiplied
        batch = stages.microbatches * stages.replicas
        arguments.append(f"--micro-batch-size 1 --global-batch-size {batch}")
    if stages.recomputes:
        arguments.append(
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
        )
    lines = [
        f"# {one_line(stages.in_words)}; the data-parallel degree follows from the number of ranks."
    ]
    if stages.microbatches:
        lines.append(f"# {stages.microbatches} microbatches; of n samples: n times both sizes.")
    lines += [f"WORLD_SIZE={world}", "MEGATRON_ARGS=("]
    lines += [f"    {argument}" for argument in arguments]
    return "\n".join([*lines, ")"]) + "\n"


def read(text: str, modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote, for a model of these modules, in order."""
    words = shlex.split(text, comments=True)
    value = dict(pairwise(words))
    world = int(next(w for w in words if w.startswith("WORLD_SIZE=")).partition("=")[2])
    ranks = int(value["--pipeline-model-parallel-size"])
    degree = int(value["--tensor-model-parallel-size"])
    parts = _expand(value["--pipeline-model-parallel-layout"]).split("|")
    left = list(modules)
    numbered = [_is_layer(module) for module in left]
    before = left[: numbered.index(True)]
    after = left[len(left) - numbered[::-1].index(True) :]
    layers = left[len(before) : len(left) - len(after)]
    wanted = sum(part.count(_LAYER) for part in parts)
    if wanted != len(layers):
        raise InputError(f"{NAME}: its layout has {wanted} layers; there are {len(layers)}")
    own, taken = [], 0
    for part in parts:
        count = part.count(_LAYER)
        middle = layers[taken : taken + count]
        taken += count
        end = [x for x in after if (_AHEAD if _is_ahead(x) else _LOSS) in part]
        own.append((*before * (_EMBEDDING in part), *middle, *end))
    if value.get("--mtp-num-layers", "0") != str(sum(part.count(_AHEAD) for part in parts)):
        raise InputError(f"{NAME}: its layout and --mtp-num-layers differ")
    replicas = world // (ranks * degree)
    microbatches = int(value.get("--global-batch-size", 0)) // replicas
    interleaved = len(parts) > ranks
    return ModuleStages(
        modules=tuple(own),
        ranks=ranks,
        devices=(),
        replicas=replicas,
        degree=degree,
        recomputes="--recompute-granularity" in words,
        schedule="" if not microbatches else "interleaved" if interleaved else "1f1b",
        microbatches=microbatches,
    )


def _ends(counts: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the stages of embedding and loss: where such modules are, else first and last."""
    first = next((s for s, count in enumerate(counts) if count[0]), 0)
    last = next((s for s, count in enumerate(counts) if count[2]), len(counts) - 1)
    return first, last


def _counts(stages: ModuleStages) -> list[tuple[int, int, int]]:
    """Return each stage's modules before, in and after the decoder, without prediction heads."""
    kept = tuple(tuple(x for x in own if not _is_ahead(x)) for own in stages.modules)
    return stack(replace(stages, modules=kept), NAME)[1]


def _check_ahead(stages: ModuleStages, counts: Sequence[tuple[int, int, int]]) -> None:
    """Check that multi-token prediction is where Megatron-LM takes it."""
    places = [s for s, own in enumerate(stages.modules) if _ahead(own)]
    if not places:
        return
    if len(places) > 1:
        raise InputError(
            f"{NAME}: multi-token prediction is on stages {places[0]} and {places[-1]}; it keeps "
            "it on one"
        )
    (s,) = places
    if any(layers for _, layers, _ in counts[s + 1 :]) or s > _ends(counts)[1]:
        raise InputError(
            f"{NAME}: multi-token prediction is on stage {s}; it runs after all layers and not "
            "after the head's stage"
        )
    if stages.ranks > 1 and s % stages.ranks == 0:
        raise InputError(
            f"{NAME}: multi-token prediction is on stage {s}, of the first rank; it wants it on "
            "another"
        )


def unit(path: str) -> str:
    """Return the layer, and of multi-token prediction without numbers the whole of it."""
    layer = first_number(path)
    if not _is_ahead(layer) or layer.rpartition(".")[2].isdecimal():
        return layer
    parts = layer.split(".")
    return ".".join(parts[: next(k for k, part in enumerate(parts) if _AHEAD_PART(part)) + 1])


def _ahead(own: Sequence[str]) -> int:
    """Return how many layers of multi-token prediction are among modules."""
    found = [x for x in own if _is_ahead(x)]
    return sum(x.rpartition(".")[2].isdecimal() for x in found) or bool(found)


def _is_ahead(module: str) -> bool:
    return any(map(_AHEAD_PART, module.split(".")))


def _is_layer(module: str) -> bool:
    return module.rpartition(".")[2].isdecimal() and not _is_ahead(module)


def repeated(letter: str, layers: int) -> str:
    """Return a letter of the layout so many times, in short."""
    return letter * layers if layers < 3 else f"{letter}*{layers}"


def _expand(layout: str) -> str:
    """Undo the short forms ``t*3`` and ``(tt|)*2``."""
    layout = layout.replace(",", "")
    for pattern in (r"\(([^()]*)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
    return layout
