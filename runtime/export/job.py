"""Files of a training job's layout for launchers, each in a module of its own but MaxText's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ...instances import InputError
from ...instances.common.errors import quote
from ...instances.common.escape import one_line
from ...instances.common.units import show_count
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import NumberFormat
from ...instances.costs.layout import (
    Layout,
    Recompute,
    check_axes,
    check_batch,
    check_experts,
    check_heads,
    check_stages,
    without_counts,
)
from ...instances.job.launchers import runs
from .accelerate import accelerate_files
from .deepspeed import deepspeed_files
from .megatron import bridge_files, megatron_files
from .torchtitan import schedule_files, torchtitan_files


def _maxtext_files(model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return settings of MaxText for a shell: source the file, then pass ``"${MAXTEXT_ARGS[@]}"``.

    They follow its base configuration on the command line; names are those of
    src/maxtext/configs/base.yml of AI-Hypercomputer/maxtext at 000b810. Its mesh has an axis for
    each parallelism; batches are divided over data, FSDP and expert axes together.
    """
    rest = layout.data // layout.expert
    sharded = rest if layout.zero == 3 else 1
    tensor = "tensor_sequence" if layout.sequence_parallel else "tensor"
    settings: dict[str, object] = {
        "base_num_decoder_layers": len(model.blocks),
        "max_target_length": layout.sequence,
        "per_device_batch_size": f"{layout.microbatch * layout.data / layout.devices:g}",
        "gradient_accumulation_steps": layout.microbatches,
        "ici_data_parallelism": rest // sharded,
        "ici_fsdp_parallelism": sharded,
        "ici_expert_parallelism": layout.expert,
        "ici_context_parallelism": layout.context,
        f"ici_{tensor}_parallelism": layout.tensor,
        "shard_optimizer_over_data": str(layout.zero == 1).lower(),
        "remat_policy": "full" if Recompute.FULL in layout.recompute else "minimal_with_context",
        "weight_dtype": "float32"
        if 4 in (layout.recipe.weight_bytes, layout.recipe.master_bytes)
        else "bfloat16",
        "dtype": "float32" if layout.recipe.compute is NumberFormat.FP32 else "bfloat16",
    }
    lines = [
        f"# {one_line(model.name)}: {show_count(layout.devices, 'device')}, one slice.",
        "MAXTEXT_ARGS=(",
        *(f"    {name}={value}" for name, value in settings.items()),
        ")",
    ]
    return {"maxtext.sh": "\n".join(lines) + "\n"}


#: Writers of a launcher's files, by the launcher's name.
JOB_LAUNCHERS: Mapping[str, Callable[[ModelDescription, Layout], dict[str, str]]] = (
    MappingProxyType(
        {
            "accelerate": accelerate_files,
            "bridge": bridge_files,
            "csv": schedule_files,
            "deepspeed": deepspeed_files,
            "maxtext": _maxtext_files,
            "megatron": megatron_files,
            "torchtitan": torchtitan_files,
        }
    )
)


def job_files(launcher: str, model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return the files by which a launcher trains a model under a layout.

    Parameters
    ----------
    launcher
        One of `JOB_LAUNCHERS`.
    model, layout
        Model to train, and its division.

    Returns
    -------
    dict of str to str
        Text of each file, by name.

    Raises
    ------
    InputError
        If there is no such launcher, or it cannot run the layout.

    Examples
    --------
    >>> import stagecut
    >>> model = stagecut.model_description("llama-3-8b")
    >>> layout = stagecut.Layout(tensor=2, pipeline=2, data=2, zero=1, global_batch=16)
    >>> print(job_files("megatron", model, layout)["megatron.sh"].splitlines()[1])
    WORLD_SIZE=8
    """
    if launcher not in JOB_LAUNCHERS:
        raise InputError(
            f"{quote(launcher)}: layouts of training jobs are written for "
            f"{', '.join(JOB_LAUNCHERS)}, and run by stagecut run"
        )
    for check in (check_heads, check_experts, check_stages):
        check(model, layout)
    check_axes(layout)
    check_batch(layout)
    layout = without_counts(model, layout)
    why = runs("any" if launcher == "csv" else launcher, layout, model)
    if why is not None:
        raise InputError(f"{why}; plan with --for {launcher}" if launcher != "csv" else why)
    if model.encoder and layout.pipeline > 1 and launcher != "csv":
        raise InputError(
            f"pipeline: {layout.pipeline}, and {model.name} has an encoder, of which {launcher} "
            "makes no stages; plan with --set pipeline=1"
        )
    return JOB_LAUNCHERS[launcher](model, layout)
