"""Execution of plans; torch is imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..instances import Plan, Planned, Workload, plan_of

if TYPE_CHECKING:
    from ..runtime.execution.options import StepResult


def run(
    plan: Plan | Planned | str | Path,
    model: Any,
    inputs: Any = None,
    *,
    workload: Workload | None = None,
    on_step: Callable[[StepResult], None] | None = None,
    **options: Any,
) -> list[StepResult]:
    """Run a plan as one of its processes, which `torchrun` starts.

    Parameters
    ----------
    plan
        A plan, the `Result` that holds it, or its file.
    model
        A `torch.nn.Module` with the same values on every rank, or a factory of the model and its
        inputs: ``module:factory`` or ``file.py:factory``.
    inputs
        Inputs of one microbatch, repeated for ever: a tensor, a tuple of positional ones or a
        dictionary of named ones; or an iterator of such. None if the factory gives them.
    workload
        The workload of the plan, against which the model is checked; needed if `plan` is no file.
    on_step
        Called on rank 0 after every step.
    options
        ``steps``, ``schedule``, ``microbatches``, ``optimizer``, …: see
        `stagecut.runtime.execution.options.RunOptions`.

    Returns
    -------
    list of StepResult
        Number, mean loss and seconds of every step.

    Raises
    ------
    InputError
        If plan, model, options and number of processes do not fit together.

    Examples
    --------
    >>> import stagecut
    >>> stagecut.run("plan.json", "my_model.py:make", steps=10)  # in a program that torchrun starts
    Traceback (most recent call last):
    stagecut.instances.common.errors.InputError: my_model.py: no such file; check the path
    """
    from ..instances.pytorch.factory import made_of, make
    from ..runtime.execution.options import RunOptions
    from ..runtime.execution.run import run as run_plan

    made = make(model) if isinstance(model, str) else made_of(model, inputs)
    held = Path(plan) if isinstance(plan, str | Path) else plan_of(plan)
    return run_plan(held, made, RunOptions(**options), workload=workload, on_step=on_step)
