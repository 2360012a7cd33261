"""Layouts for MaxText: the settings that follow its base configuration on the command line.

Names are those of src/maxtext/configs/base.yml of AI-Hypercomputer/maxtext at 000b810. Its mesh has
an axis for each parallelism; batches are divided over data, FSDP and expert axes together.
"""

from __future__ import annotations

from ...instances.common.escape import one_line
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import NumberFormat
from ...instances.costs.layout import Layout, Recompute


def maxtext_files(model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return settings for a shell: source the file, then pass ``"${MAXTEXT_ARGS[@]}"``.

    Raises `InputError` if MaxText has no setting for a part of the layout.
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
        "weight_dtype": "float32" if 4 in _kept(layout) else "bfloat16",
        "dtype": "float32" if layout.recipe.compute is NumberFormat.FP32 else "bfloat16",
    }
    lines = [
        f"# {one_line(model.name)}: {layout.devices} devices, one slice.",
        "MAXTEXT_ARGS=(",
        *(f"    {name}={value}" for name, value in settings.items()),
        ")",
    ]
    return {"maxtext.sh": "\n".join(lines) + "\n"}


def _kept(layout: Layout) -> tuple[float, float]:
    """Return bytes of the weights that are kept."""
    return layout.recipe.weight_bytes, layout.recipe.master_bytes
