"""Options of runs, with defaults from the plan, and results of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...instances import (
    DeviceMapping,
    InputError,
    Plan,
    Sharding,
    Workload,
    is_stream,
    layers_of,
)
from ...instances.costs.layout import JobSchedule
from ..simulate.plan_stages import DEFAULT_MICROBATCHES, schedule_to_run
from .chain import ASYNCHRONOUS, SYNCHRONOUS
from .guard.failures import TIMEOUT_S

#: Function that makes an optimizer of parameters, or of groups of them.
MakeOptimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]
#: Schedules that jobs alone may have.
_OF_JOBS = (*JobSchedule, "looped-bfs", "interleaved-zb")
OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run: of a plan, a sharding, or a training job.

    Parameters
    ----------
    device
        ``cpu`` (gloo), ``cuda`` (NCCL), or ``auto``: ``cuda`` where there is one.
    threads
        Of torch in each process; default: the cores that the process may use, shared by the
        processes on this host.
    timeout_s
        Longest time, in seconds, that a rank may keep the others waiting; see `failures.guarded`.
    checkpoint, every
        Folder for checkpoints, written at the end and, if given, after every so many steps.
    resume
        Go on from the newest checkpoint.
    steps
        Number in all, those before a checkpoint included; None: as many as there are batches.
    schedule, microbatches
        Default: those that the plan was made for, if it is one for an iteration or for training,
        else ``1f1b`` and 8; an iteration's plan runs with no others. Mappings: ``gpipe``, and the
        plan's. Microbatches count per replica of the whole pipeline, also of a mapping; the stages
        of a training plan share them. A job has both from its layout; for another schedule see
        `RunningJob`.
    replicas
        Copies of the whole pipeline, each with microbatches of its own.
    recompute
        Keep only the inputs of each piece, and compute the rest again in the backward pass.
    optimizer
        ``sgd``, ``adam`` or ``adamw``, or a function that makes one of parameters, or of groups.
    learning_rate
        Learning rate of an optimizer by name.
    record
        File for begin and end of every action of every rank; of a job, for its last step by term.
    check
        Compare loss and gradients of the first step with those of one process, which every rank
        computes; see `check_first_step`.
    clip
        Largest norm of all gradients of a job together; 0: they are not clipped.
    measure
        Whether the last step of a job is measured by term, which takes at least two.

    Examples
    --------
    >>> RunOptions(clip=1.0).device
    'auto'
    """

    device: str = "auto"
    threads: int | None = None
    timeout_s: float = TIMEOUT_S
    checkpoint: Path | None = None
    every: int | None = None
    resume: bool = False
    steps: int | None = 10
    schedule: str | None = None
    microbatches: int | None = None
    replicas: int = 1
    recompute: bool = False
    optimizer: str | MakeOptimizer = "sgd"
    learning_rate: float = 0.01
    record: Path | None = None
    check: bool = False
    clip: float = 0.0
    measure: bool = False

    def __post_init__(self) -> None:
        """Raise InputError if no run can have these values."""
        for what in ("threads", "every", "steps", "microbatches", "replicas"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise InputError(f"{what}: {value}; it must be at least 1")
        if not self.timeout_s > 0:
            raise InputError(f"timeout: {self.timeout_s:g}; it must be above 0")
        if self.checkpoint is None and (self.every is not None or self.resume):
            raise InputError("checkpoint: say in which folder checkpoints are")
        schedules = (*SYNCHRONOUS, *ASYNCHRONOUS)
        if self.schedule is not None and self.schedule not in (*schedules, "given", *_OF_JOBS):
            raise InputError(f"schedule: {self.schedule!r} is not one of {', '.join(schedules)}")
        if isinstance(self.optimizer, str) and self.optimizer not in OPTIMIZERS:
            raise InputError(f"optimizer: {self.optimizer!r} is not one of {', '.join(OPTIMIZERS)}")
        for what, number in (("lr", self.learning_rate), ("clip", self.clip)):
            if not 0 <= number < math.inf:
                raise InputError(f"{what}: {number:g}; it must be a number of at least 0")
        if self.check and (self.resume or self.schedule in ASYNCHRONOUS):
            raise InputError("check: only of a run from its beginning, by a synchronous schedule")
        if self.schedule in ASYNCHRONOUS:
            self._check_asynchronous()

    def leave_out(self, names: Sequence[str], why: str) -> None:
        """Raise InputError if one of these options is given."""
        for what in names:
            if getattr(self, what) != getattr(RunOptions, what):
                raise InputError(f"{what}: {why}; leave it out")

    def identity(self) -> dict[str, str]:
        """Return the values that must be equal on all ranks, by name."""
        names = ("steps", "schedule", "microbatches", "every", "resume", "check")
        alike = {f"--{name}": repr(getattr(self, name)) for name in names}
        rare = ("replicas", "recompute", "clip")
        alike |= {f"--set {name}": repr(getattr(self, name)) for name in rare}
        alike["--report"] = repr(self.measure)
        alike["--lr"] = repr(self.learning_rate)
        alike["--optimizer"] = self.optimizer if isinstance(self.optimizer, str) else "given"
        alike["--record"] = "none" if self.record is None else "given"
        folder = self.checkpoint
        alike["--checkpoint"] = "none" if folder is None else repr(str(folder.absolute()))
        return alike

    def settled(self, plan: Plan, workload: Workload) -> RunOptions:
        """Return the options with missing values from the plan; InputError if one does not fit."""
        self.leave_out(("clip", "measure"), "it is of training jobs alone")
        if isinstance(plan.problem, Sharding):
            own = ("schedule", "microbatches", "replicas", "recompute")
            self.leave_out(own, "a sharding runs each batch as a whole on all devices")
            return self
        of_stages = is_stream(plan.problem) or isinstance(plan.problem, DeviceMapping)
        if of_stages and self.replicas > 1:
            raise InputError("replicas: the plan says them for each stage; leave them out")
        if is_stream(plan.problem):
            batch = plan.problem.microbatches or layers_of(workload).microbatches
            return replace(
                self,
                schedule=self.schedule or plan.problem.in_flight,
                microbatches=self.microbatches or batch or DEFAULT_MICROBATCHES,
            )
        schedule, microbatches = schedule_to_run(plan, self.schedule, self.microbatches)
        if isinstance(plan.problem, DeviceMapping):  # whose stages share those of all replicas
            microbatches *= plan.problem.replicas
        return replace(self, schedule=schedule, microbatches=microbatches)

    def make_optimizer(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """Return the optimizer of some parameters, or groups of them."""
        if not isinstance(self.optimizer, str):
            return self.optimizer(parameters)
        given: list[Any] = list(parameters)
        # one kernel for all: with PyTorch's default the step of llama3.2-1b took 45 ms on an H100,
        # and is priced at 20 fused
        fused = any(x.is_cuda for x in tree_leaves(given) if isinstance(x, torch.Tensor))
        return OPTIMIZERS[self.optimizer](given, lr=self.learning_rate, fused=fused or None)

    def _check_asynchronous(self) -> None:
        if self.replicas > 1:
            raise InputError(
                f"schedule {self.schedule}: copies of the whole pipeline would drift apart; "
                "leave replicas out"
            )
        if self.record is not None:
            raise InputError(f"record: no recording of the schedule {self.schedule}; use 1f1b")
        if self.steps is None:
            raise InputError(f"steps: the schedule {self.schedule} takes a number of them")


@dataclass(frozen=True)
class StepResult:
    """Result of a step: its number from 0 on, the mean loss, and seconds."""

    number: int
    loss: float
    seconds: float
