"""Registry of launchers of plans by name, and the schedules that torch runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

import numpy as np

from ...instances import (
    InputError,
    PipelinePlacement,
    Placement,
    Plan,
    Planned,
    TensorSharding,
    Workload,
    is_iteration,
    plan_of,
)
from ...instances.common.units import FROM_PYTORCH, ON_NUMBERS
from ...instances.model.schedule import COMPUTES
from ..execution.chain import executed_stages
from ..schedules import Schedule, make_schedule, validate
from ..simulate.plan_stages import named_schedule, schedule_to_run, usual_schedule
from . import accelerate, deepspeed, megatron, torchtitan, vllm
from .stages import ModuleStages, first_number, modules_of

#: Targets that need no whole modules: our script, and torch's schedules.
PYTHON, CSV = "python", "csv"


@dataclass(frozen=True)
class Launcher:
    """Launcher that divides models between modules."""

    #: Function that returns the plan's stages, or raises InputError with the reason why it cannot.
    cut: Callable[[Workload, Plan], ModuleStages]
    #: Function that returns the text of its file.
    write: Callable[[ModuleStages], str]
    #: Function that returns the module that the launcher keeps whole, from a path inside it.
    unit: Callable[[str], str]
    #: Schedules that it runs; empty if it takes none.
    schedules: tuple[str, ...] = ()
    #: Whether its stages form a chain of accelerators.
    pipeline: bool = True
    #: Whether all that comes before the first of its numbered layers, and all that comes after the
    #: last one, has to be on one stage.
    ends: bool = False
    #: Whether either has to be on the stage of that layer.
    layer_on_each: bool = False


LAUNCHERS: Mapping[str, Launcher] = MappingProxyType(
    {
        torchtitan.NAME: Launcher(
            torchtitan.cut, torchtitan.write, torchtitan.unit, tuple(torchtitan.SCHEDULES)
        ),
        megatron.NAME: Launcher(
            megatron.cut, megatron.write, megatron.unit, megatron.SCHEDULES, ends=True
        ),
        deepspeed.NAME: Launcher(deepspeed.cut, deepspeed.write, first_number, deepspeed.SCHEDULES),
        vllm.NAME: Launcher(vllm.cut, vllm.write, first_number, ends=True, layer_on_each=True),
        accelerate.NAME: Launcher(accelerate.cut, accelerate.write, str, pipeline=False),
    }
)


def kept_whole(workload: Workload, name: str) -> list[tuple[int, ...]]:
    """Return groups of forward nodes that a launcher puts on one stage, of two nodes or more.

    Raises `InputError` if the nodes are no modules, or it serves models and the workload trains
    one.
    """
    if name == vllm.NAME:
        vllm.check_inference(workload)
    launcher = LAUNCHERS[name]
    own = modules_of(workload, name, launcher.unit)
    groups: dict[str, list[int]] = {}
    for v, module in own.items():
        groups.setdefault(module, []).append(v)
    numbered = [k for k, name in enumerate(groups) if name.rpartition(".")[2].isdecimal()]
    parts = list(groups.values())
    if launcher.ends and numbered:
        first, last = numbered[0], numbered[-1] + 1
        if launcher.layer_on_each and len(numbered) > 1:
            first, last = first + 1, last - 1
        before, after = chain.from_iterable(parts[:first]), chain.from_iterable(parts[last:])
        parts = [list(before), *parts[first:last], list(after)]
    return [tuple(nodes) for nodes in parts if len(nodes) > 1]


def takers(workload: Workload, plan: Plan | Planned) -> dict[str, str]:
    """Return by launcher the reason why it cannot take a plan; empty if it can."""
    plan = plan_of(plan)
    if isinstance(plan.solution, TensorSharding):
        return {}
    tries: dict[str, Callable[[Workload, Plan], object]] = {
        PYTHON: _as_script,
        CSV: torch_schedule,
        **{name: launcher.cut for name, launcher in LAUNCHERS.items()},
    }
    found = {}
    for name, cut in tries.items():
        try:
            cut(workload, plan)
            found[name] = ""
        except InputError as error:
            found[name] = str(error).removeprefix(f"{name}: ")
    return found


def _as_script(workload: Workload, plan: Plan) -> None:
    """Raise InputError if no script can be written, as far as known without the model."""
    if not isinstance(plan.solution, Placement | PipelinePlacement):
        raise InputError("a script runs placements; plan with --problem pipeline or throughput")
    made = workload.provenance
    if made.get("generator") != FROM_PYTORCH:
        raise InputError(f"{workload.name} is of no PyTorch model; profile one")
    if made.get("traced_by") == ON_NUMBERS:
        raise InputError("its code depends on numbers; plan with --for run, and use stagecut run")


def torch_schedule(
    workload: Workload, plan: Plan, name: str | None = None, microbatches: int | None = None
) -> tuple[Schedule, tuple[int, ...]]:
    """Return the schedule that torch runs, a row per rank, and the plan's device of each rank.

    Stages are the plan's pieces in the order in which they can run, each of which gets its inputs
    from the one before. Devices without a piece have no rank. Raises `InputError` if torch cannot
    run the schedule, or it does not fit the plan.
    """
    stages = executed_stages(workload, plan)
    if any(len(ring) > 1 for ring in stages.replicas):
        raise InputError(
            "csv: the plan has replicas, and torch.distributed.pipelining runs one copy of each "
            "stage; run it with stagecut run"
        )
    if not is_iteration(plan.problem):
        name = name or str(usual_schedule(plan))
    name, microbatches = schedule_to_run(plan, name, microbatches)
    planned = named_schedule(plan, name)
    made = make_schedule(planned, stages, microbatches) if isinstance(planned, str) else planned
    if made.versions != "one":
        raise InputError(
            f"csv: {name} keeps versions of weights, which torch.distributed.pipelining does "
            "not; export a synchronous schedule such as 1f1b"
        )
    validate(made, stages)
    devices, rows = [], []
    for d, table in enumerate(made.actions):
        own = table[np.isin(table[:, 1], COMPUTES)]
        if len(own):
            devices.append(d)
            rows.append(own)
    return Schedule(name, microbatches, tuple(rows)), tuple(devices)


def launcher_file(workload: Workload, plan: Plan | Planned, name: str) -> tuple[str, ModuleStages]:
    """Return the text of a launcher's file for a plan, and its stages.

    Raises `InputError` if the launcher cannot express the plan.
    """
    launcher = LAUNCHERS[name]
    stages = launcher.cut(workload, plan_of(plan))
    return launcher.write(stages), stages
