"""A task: a problem on a workload and a cluster, priced, as every solver gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..instances import Cluster, Costs, Latency, Plan, Problem, Throughput, Workload, price


@dataclass(frozen=True, eq=False)
class Task:
    """What to solve.

    Parameters
    ----------
    workload, cluster, problem
        As given by the user.
    costs
        The workload priced for the cluster.
    start
        A plan to start from, already found to fit; None without.
    options
        What only some solvers read: ``solver`` names the MILP solver.
    """

    workload: Workload
    cluster: Cluster
    problem: Problem
    costs: Costs
    start: Plan | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def throughput(self) -> Throughput:
        """The problem, for methods that know only this one."""
        assert isinstance(self.problem, Throughput)
        return self.problem

    @property
    def latency(self) -> Latency:
        """The problem, for methods that know only this one."""
        assert isinstance(self.problem, Latency)
        return self.problem


def pose(
    workload: Workload,
    cluster: Cluster,
    problem: Problem,
    start: Plan | None = None,
    options: Mapping[str, str] | None = None,
) -> Task:
    """Return the task, with the workload priced for the cluster."""
    return Task(workload, cluster, problem, price(workload, cluster), start, options or {})
