"""Plans for Accelerate: a device map, module by module."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from ...instances import InputError, Plan, ReplicaPlacement, StagePlacement, Workload
from .stages import ModuleStages, modules_of

NAME = "accelerate"


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the modules of each device, devices in the order of their first module.

    Devices may come back: a device map needs no pipeline. They are numbered as `device_map` wants
    them: accelerators 0, 1, …, and ``cpu``. Raises `InputError` if there are replicas or
    tensor-parallel groups, or a module is on two devices.
    """
    plan.check_made_for(workload)
    solution = plan.solution
    if (
        isinstance(solution, StagePlacement)
        and any(s.replicas * s.degree > 1 for s in solution.stages)
    ) or (isinstance(solution, ReplicaPlacement) and solution.slots.shape[1] > 1):
        raise InputError(f"{NAME}: the plan has replicas; a device map holds one copy of a model")
    names = _names(plan)
    where: dict[str, str] = {}
    for v, module in modules_of(workload, NAME, str).items():
        device = names[int(plan.placement[v])]
        if where.setdefault(module, device) != device:
            raise InputError(
                f"{NAME}: module {module} is split between devices {where[module]} and {device}; "
                f"it keeps it whole: plan with --for {NAME}"
            )
    return _by_device(where)


def write(stages: ModuleStages) -> str:
    """Return JSON: ``dispatch_model(model, device_map=json.load(open(FILE)))``."""
    values = {
        module: device if device == "cpu" else int(device)
        for device, own in zip(stages.devices, stages.modules, strict=True)
        for module in own
    }
    return json.dumps(values, indent=2) + "\n"


def read(text: str, _modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote."""
    return _by_device({module: str(device) for module, device in json.loads(text).items()})


def _by_device(where: dict[str, str]) -> ModuleStages:
    devices = tuple(dict.fromkeys(where.values()))
    modules = tuple(tuple(m for m, own in where.items() if own == d) for d in devices)
    return ModuleStages(modules, len(devices), devices)


def _names(plan: Plan) -> list[str]:
    hosts = np.array([plan.cluster.kinds[d.kind].host for d in plan.cluster.devices])
    numbers = np.cumsum(~hosts) - 1
    return ["cpu" if host else str(k) for host, k in zip(hosts, numbers, strict=True)]
