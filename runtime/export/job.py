"""Files that give a layout of a training job to a launcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ...instances import InputError
from ...instances.common.errors import quote
from ...instances.costs.description import ModelDescription
from ...instances.costs.layout import (
    Layout,
    check_batch,
    check_experts,
    check_heads,
    check_stages,
)
from ...instances.job.launchers import runs
from .job_accelerate import accelerate_files
from .job_bridge import bridge_files
from .job_deepspeed import deepspeed_files
from .job_maxtext import maxtext_files
from .job_megatron import megatron_arguments
from .job_torchtitan import schedule_files, torchtitan_files


def _megatron_files(model: ModelDescription, layout: Layout) -> dict[str, str]:
    return {"megatron.sh": megatron_arguments(model, layout)}


#: What writes a launcher's files, by its name.
JOB_LAUNCHERS: Mapping[str, Callable[[ModelDescription, Layout], dict[str, str]]] = (
    MappingProxyType(
        {
            "accelerate": accelerate_files,
            "bridge": bridge_files,
            "csv": schedule_files,
            "deepspeed": deepspeed_files,
            "maxtext": maxtext_files,
            "megatron": _megatron_files,
            "torchtitan": torchtitan_files,
        }
    )
)


def job_files(launcher: str, model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return the files that make a launcher train a model under a layout.

    Parameters
    ----------
    launcher
        One of `JOB_LAUNCHERS`.
    model, layout
        What is trained, and how it is divided.

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
    check_batch(layout)
    layout = _without_counts(model, layout)
    why = runs("any" if launcher == "csv" else launcher, layout, model.layers)
    if why is not None:
        raise InputError(f"{why}; plan with --for {launcher}" if launcher != "csv" else why)
    if model.encoder and layout.pipeline > 1 and launcher != "csv":
        raise InputError(
            f"pipeline: {layout.pipeline}, and {model.name} has an encoder, of which {launcher} "
            "makes no stages; plan with --set pipeline=1"
        )
    return JOB_LAUNCHERS[launcher](model, layout)


def _without_counts(model: ModelDescription, layout: Layout) -> Layout:
    """Return a layout without a count of recomputed layers if all or none of them are."""
    layers = layout.layers_of_stages(len(model.blocks))
    counts = tuple(layout.recomputed_layers(stage, count) for stage, count in enumerate(layers))
    if counts == layers:
        return replace(layout, recompute_layers=None)
    if not any(counts) and not model.mtp:  # which are recomputed, but not counted
        return replace(layout, recompute=frozenset(), recompute_layers=None)
    return layout
