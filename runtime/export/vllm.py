"""Plans for vLLM: layers per pipeline stage, as its environment variable and arguments."""

from __future__ import annotations

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
