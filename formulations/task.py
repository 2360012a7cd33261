"""Tasks: a problem on a workload and a cluster, with all costs, as every solver gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar, cast

from ..instances import (
    Cluster,
    Costs,
    DeviceMapping,
    InputError,
    Latency,
    PipelineJob,
    Plan,
    Problem,
    Sharding,
    Workload,
    price,
    program_of,
    without_links,
)
from ..instances.common.arrays import Ints
from ..instances.model.stage_costs import check_weights, cluster_differs

P = TypeVar("P", bound=Problem)
P_co = TypeVar("P_co", bound=Problem, covariant=True)


@dataclass(frozen=True, eq=False)
class Task(Generic[P_co]):
    """A problem on a workload and a cluster, with their costs: the input of every method."""

    workload: Workload  # workload, cluster, problem: as given by the user
    cluster: Cluster
    problem: P_co
    start: Plan | None = None  # a plan to start from, already found to fit; None without
    # settings that only some solvers read: ``solver`` names the MILP solver
    options: Mapping[str, str] = field(default_factory=dict)
    # (n,): number common to nodes that share a device by colours or rules, −1 for none; takes the
    # place of colours; only for throughput
    joined: Ints | None = None

    @property
    def solver(self) -> str:
        """Name of the solver of integer programs."""
        return self.options.get("solver", "highs")

    @cached_property
    def linked_costs(self) -> Costs:
        """Costs of the workload on the cluster, including messages between linked devices.

        Raises InputError if they cannot be determined.
        """
        return price(self.workload, self.cluster)

    @cached_property
    def costs(self) -> Costs:
        """Costs without links between devices: lower bounds on the true costs.

        Methods that ignore links use these: their bounds hold, and their solutions are judged by
        the true costs.
        """
        several = isinstance(self.problem, Latency) and self.problem.calls > 1
        return without_links(self.linked_costs, returning=several)


def pose(
    workload: Workload,
    cluster: Cluster,
    problem: P,
    start: Plan | None = None,
    options: Mapping[str, str] | None = None,
) -> Task[P]:
    """Return the task; InputError if the workload lacks data that the problem needs."""
    if isinstance(problem, DeviceMapping):
        check_weights(workload, problem)
        if differ := cluster_differs(cluster, problem.topology):
            raise InputError(f"{differ}; leave the cluster out, or give one that fits")
    if isinstance(problem, PipelineJob):
        problem = cast("P", problem.for_workload(workload))
    if isinstance(problem, Sharding):
        program_of(workload)
    return Task(workload, cluster, problem, start, options or {})
