"""The launchers that plans are written for, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ...instances import Plan, Planned, StagecutError, Workload, plan_of
from . import accelerate, deepspeed, megatron, torchtitan, vllm
from .stages import ModuleStages


@dataclass(frozen=True)
class Launcher:
    """How plans are written for a launcher that cuts models between modules.

    Parameters
    ----------
    cut
        Returns the plan's stages, or raises InputError with the reason why it cannot.
    write
        Returns the text of the file.
    read
        Returns the stages that a text written so says, given the names of the modules in the
        order in which they run.
    """

    cut: Callable[[Workload, Plan], ModuleStages]
    write: Callable[[ModuleStages], str]
    read: Callable[[str, Sequence[str]], ModuleStages]


LAUNCHERS: Mapping[str, Launcher] = MappingProxyType(
    {
        module.NAME: Launcher(module.cut, module.write, module.read)
        for module in (torchtitan, megatron, deepspeed, vllm, accelerate)
    }
)


def launcher_file(workload: Workload, plan: Plan | Planned, name: str) -> tuple[str, ModuleStages]:
    """Return the file of a plan for a launcher, read back and compared, and what it says.

    Raises
    ------
    InputError
        If the launcher cannot express the plan.
    """
    launcher = LAUNCHERS[name]
    stages = launcher.cut(workload, plan_of(plan))
    text = launcher.write(stages)
    back = launcher.read(text, [module for own in stages.modules for module in own])
    if replace(back, devices=stages.devices) != stages:
        raise StagecutError(f"{name}: what was written reads back as another plan: a fault of ours")
    return text, stages
