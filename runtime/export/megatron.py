"""Plans for Megatron-LM: the arguments of its pipeline layout."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise

from ...instances import InputError, Plan, Workload
from ...instances.common.escape import one_line, shell
from .stack import first_number, stack
from .stages import ModuleStages, module_stages

NAME = "megatron"

#: What comes first, a layer, and what comes last: embedding, decoder layer, head with the loss.
_EMBEDDING, _LAYER, _LOSS = "E", "t", "L"


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the stages of layers, with the embedding on the first and the loss on the last.

    Raises
    ------
    InputError
        If Megatron-LM cannot express the plan.
    """
    stages = module_stages(
        workload, plan, NAME, first_number, rounds=True, schedules=("1f1b", "interleaved")
    )
    _, counts = stack(stages, NAME)
    for what, column in (("before the first layer", 0), ("after the last layer", 2)):
        places = [s for s, count in enumerate(counts) if count[column]]
        if len(places) > 1:
            raise InputError(
                f"{NAME}: what comes {what} is on stages {places[0]} and {places[-1]}; it keeps "
                "it on one"
            )
    return stages


def write(stages: ModuleStages) -> str:
    """Return arguments for a shell: source the file, then pass ``"${MEGATRON_ARGS[@]}"``."""
    _, counts = stack(stages, NAME)
    first, last = _ends(counts)
    layout = "|".join(
        _EMBEDDING * (s == first) + _times(layers) + _LOSS * (s == last)
        for s, (_, layers, _) in enumerate(counts)
    )
    world = stages.ranks * stages.replicas * stages.degree
    arguments = [
        f"--num-layers {sum(layers for _, layers, _ in counts)}",
        f"--tensor-model-parallel-size {stages.degree}",
        f"--pipeline-model-parallel-size {stages.ranks}",
        f"--pipeline-model-parallel-layout {shell(layout)}",
    ]
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
    numbered = [module.rpartition(".")[2].isdecimal() for module in left]
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
        own.append((*before * (_EMBEDDING in part), *middle, *after * (_LOSS in part)))
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


def _times(layers: int) -> str:
    return _LAYER * layers if layers < 3 else f"{_LAYER}*{layers}"


def _expand(layout: str) -> str:
    """Undo the short forms ``t*3`` and ``(tt|)*2``."""
    layout = layout.replace(",", "")
    for pattern in (r"\(([^()]*)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
    return layout
