"""A task: a problem on a workload and a cluster, priced, as every solver gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..instances import Cluster, Costs, Plan, Problem, Workload, price


@dataclass(frozen=True, eq=False)
class Task:
    """What to solve.

    Parameters
    ----------
    workload, cluster, problem
        As given by the user.
    start
        A plan to start from, already found to fit; None without.
    options
        What only some solvers read: ``solver`` names the MILP solver.
    """

    workload: Workload
    cluster: Cluster
    problem: Problem
    start: Plan | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def costs(self) -> Costs:
        """The workload priced for the cluster; raises InputError where it cannot be priced."""
        return price(self.workload, self.cluster)


def pose(
    workload: Workload,
    cluster: Cluster,
    problem: Problem,
    start: Plan | None = None,
    options: Mapping[str, str] | None = None,
) -> Task:
    """Return the task."""
    return Task(workload, cluster, problem, start, options or {})
