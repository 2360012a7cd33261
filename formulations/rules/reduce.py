"""What is solved in place of a task with rules for placements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...instances import Iteration, Problem, Training
from ..task import Task
from .cases import Case, cases, colours_of, relaxed
from .devices import devices_of
from .groups import Groups, groups_of


@dataclass(frozen=True, eq=False)
class Reduced:
    """The cases of a task with rules.

    Parameters
    ----------
    relaxation
        A task that every plan is one of.
    cases
        Tasks whose plans together are the plans, made when they are asked for.
    """

    relaxation: Case
    cases: Iterator[Case]


def names_stages(problem: Problem) -> bool:
    """Whether the numbers of a problem's rules are stages, which its own methods then keep."""
    return isinstance(problem, Training) or (
        isinstance(problem, Iteration) and problem.split == "contiguous"
    )


def without_rules(task: Task[Any]) -> Reduced:
    """Return the cases of a task with rules.

    Raises
    ------
    InputError
        If a rule names a node or device that there is not.
    InfeasibleError
        If rules contradict each other.
    """
    groups = groups_of(task.workload, task.problem.placement_rules)
    if names_stages(task.problem):
        own = Case(_joined(task, groups), np.arange(task.cluster.size))
        return Reduced(own, iter([own]))
    devices = devices_of(task, groups)
    return Reduced(relaxed(task, devices), cases(task, devices))


def _joined(task: Task[Any], groups: Groups) -> Task[Any]:
    """Return the task with what is together as colours; its methods keep the other rules."""
    return replace(task, workload=replace(task.workload, **colours_of(task, groups.group_of)))
