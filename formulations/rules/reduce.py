"""What is solved in place of a task with rules for placements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ...instances import InfeasibleError, InputError, is_stream
from ...instances.model.problem import names_stages
from ..task import Task
from .cases import RuleCase, cases, colours_of, relaxed
from .devices import devices_of
from .groups import groups_of


@dataclass(frozen=True, eq=False)
class RuleCases:
    """The cases of a task with rules."""

    relaxation: RuleCase  # a task that every plan is one of
    # tasks whose plans together are the plans, made when they are asked for
    cases: Iterator[RuleCase]


def stage_task(task: Task[Any]) -> Task[Any]:
    """Return a task whose rules name stages as its methods take it: they keep the rules.

    Errors are those of `groups_of`.
    """
    coloured = not is_stream(task.problem)
    groups = groups_of(task.workload, task.problem.placement_rules, coloured=coloured)
    if not coloured:
        return task
    return replace(task, workload=replace(task.workload, **colours_of(task, groups.group_of)))


def without_rules(task: Task[Any]) -> RuleCases:
    """Return the cases of a task whose rules name devices.

    InputError if a rule names a node or device that there is not, InfeasibleError if rules
    contradict each other.
    """
    devices = devices_of(task, groups_of(task.workload, task.problem.placement_rules))
    return RuleCases(relaxed(task, devices), cases(task, devices))


def only_case(task: Task[Any]) -> Task[Any]:
    """Return the task of `only_rule_case`."""
    return only_rule_case(task).task


def only_rule_case(task: Task[Any]) -> RuleCase:
    """Return the only case of a task with rules.

    Of one without, and where methods keep rules, it.

    InputError if there are several: what is apart, or few devices, can be had in several ways;
    InfeasibleError if rules contradict each other.
    """
    if not task.problem.placement_rules or names_stages(task.problem):
        own = stage_task(task) if task.problem.placement_rules else task
        return RuleCase(own, np.arange(task.cluster.size))
    found = list(islice(without_rules(task).cases, 2))
    if not found:
        raise InfeasibleError(why_no_case(task))
    if len(found) > 1:
        raise InputError(
            "placement rules: they are several programs, one for each way to keep nodes apart or "
            "to choose devices; pin more nodes, or leave out apart or max_stages"
        )
    return found[0]


def why_no_case(task: Task[Any]) -> str:
    """Return why a task with rules has no case at all."""
    most = task.problem.placement_rules.max_stages
    few = "" if most is None else f", or the {most} that may be used"
    return (
        f"placement rules: what is pinned or apart needs more than the {task.cluster.size} "
        f"devices{few}; leave out a rule, or add devices"
    )
