"""Plans for vLLM: layers per pipeline stage, as its environment variable and arguments."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import accumulate, pairwise

from ...instances import InputError, Plan, Workload
from ...instances.common.escape import one_line
from .stages import ModuleStages, first_number, module_stages, stack

NAME = "vllm"
VARIABLE = "VLLM_PP_LAYER_PARTITION"


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the stages of layers; vLLM puts the embedding first and the head last.

    Raises `InputError` if vLLM cannot express the plan.
    """
    check_inference(workload)
    stages = module_stages(workload, plan, NAME, first_number)
    _, counts = stack(stages, NAME)
    for s, (before, layers, after) in enumerate(counts):
        if not layers:
            raise InputError(f"{NAME}: stage {s} holds no layer; it wants at least one on each")
        if before and s:
            raise InputError(f"{NAME}: what comes before the layers is on stage {s}, not the first")
        if after and s < len(counts) - 1:
            raise InputError(f"{NAME}: what comes after the layers is on stage {s}, not the last")
    return stages


def check_inference(workload: Workload) -> None:
    """Raise InputError if a workload has a backward pass."""
    if workload.backward.any() or workload.layers is not None:
        raise InputError(f"{NAME}: it serves models; the plan trains one: plan its inference")


def write(stages: ModuleStages) -> str:
    """Return a shell script; the model is the variable MODEL or the first argument."""
    _, counts = stack(stages, NAME)
    layers = ",".join(str(count) for _, count, _ in counts)
    return (
        f"# {one_line(stages.in_words)}\n"
        f"export {VARIABLE}={layers}\n"
        'vllm serve "${MODEL:-$1}" \\\n'
        f"    --pipeline-parallel-size {stages.ranks} \\\n"
        f"    --tensor-parallel-size {stages.degree} \\\n"
        f"    --data-parallel-size {stages.replicas}\n"
    )


def read(text: str, modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote, for a model of these modules, in order."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    value = dict(pairwise(words))
    (partition,) = (w.partition("=")[2] for w in words if w.startswith(f"{VARIABLE}="))
    ends = [0, *accumulate(int(count) for count in partition.split(","))]
    numbered = [module.rpartition(".")[2].isdecimal() for module in modules]
    first = numbered.index(True)
    bounds = [first + end for end in ends]
    bounds[0], bounds[-1] = 0, len(modules)
    if ends[-1] != sum(numbered):
        raise InputError(f"{NAME}: {partition} are {ends[-1]} layers; there are {sum(numbered)}")
    return ModuleStages(
        modules=tuple(tuple(modules[a:b]) for a, b in pairwise(bounds)),
        ranks=int(value["--pipeline-parallel-size"]),
        devices=(),
        replicas=int(value["--data-parallel-size"]),
        degree=int(value["--tensor-parallel-size"]),
    )
