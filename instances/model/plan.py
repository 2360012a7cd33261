"""Plans: solutions with problem, objective, bound and certificate.

Functions that take a plan also take any object that holds one, such as the result of a search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from ..common.arrays import Ints, rebuild
from ..common.errors import InputError, quote
from ..common.units import show_gap
from .cluster import Cluster
from .problem import DeviceMapping, Problem, objective_unit
from .solution import Solution
from .summary import Summarised
from .workload import Workload

if TYPE_CHECKING:
    import pandas as pd


class Planned(Protocol):
    """Holder of a plan, if one was found: `Result`, `PlannedModel`, `Explanation`.

    Examples
    --------
    >>> import stagecut
    >>> held: Planned = stagecut.solve("gpt2-xl", stagecut.accelerators_and_cpus(1))
    >>> held.plan is None
    False
    """

    @property
    def plan(self) -> Plan | None:
        """The plan; None if there is none."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Summarised):
    """A solution with its objective, bound and certificate.

    Parameters
    ----------
    workload_name, workload_fingerprint
        The workload that it was made for; it is refused for any other.
    cluster
        The devices that it was made for.
    problem
        The problem that it solves.
    solution
        The solution, of the problem's type.
    objective
        Verified objective, in `time_unit`.
    bound
        Lower bound on the objective of every solution, in `time_unit`.
    method
        Name of the method that found it.
    time_unit
        The workload's.
    certificate
        Evidence for the bound that can be checked independently, by name; empty if the bound is
        only a solver's claim.
    provenance
        Versions, seed, limits.

    Raises
    ------
    InputError
        If a node's device does not exist in the cluster.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> plan.bound <= plan.objective, plan.to_pandas(workload)["device"].nunique()
    (True, 2)
    """

    workload_name: str
    workload_fingerprint: str
    cluster: Cluster
    problem: Problem
    solution: Solution
    objective: float
    bound: float
    method: str
    time_unit: str
    certificate: Mapping[str, object] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("objective", "bound"):
            object.__setattr__(self, key, float(getattr(self, key)))
        object.__setattr__(self, "certificate", MappingProxyType(dict(self.certificate)))
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))
        size = self.cluster.size
        if self.placement.min(initial=0) < 0 or self.placement.max(initial=0) >= size:
            raise InputError(f"plan: a node's device is not one of the cluster's 0 to {size - 1}")

    @property
    def placement(self) -> Ints:
        """Shape (n,): number of the device of each node."""
        return self.solution.device

    @property
    def device_names(self) -> tuple[str, ...]:
        """Name of each device of the cluster, or of a mapping's topology."""
        if isinstance(self.problem, DeviceMapping):
            return self.problem.topology.devices
        return tuple(device.name for device in self.cluster.devices)

    @property
    def gap(self) -> float:
        """(objective − bound) / objective."""
        return gap_between(self.objective, self.bound)

    @property
    def of_given_stages(self) -> bool:
        """Whether the bound of a mapping is one for the stages of this plan alone."""
        return str(self.certificate.get("origin")).endswith(", stages given")

    def check_made_for(self, workload: Workload) -> None:
        """Raise InputError unless the plan was made for `workload`."""
        check_made_for(self.workload_name, self.workload_fingerprint, workload)

    def to_pandas(self, workload: Workload) -> pd.DataFrame:
        """Return one row per node: its id as index, name, device number and device name."""
        import pandas as pd

        self.check_made_for(workload)
        devices = [self.device_names[d] for d in self.placement.tolist()]
        columns = {"name": workload.names, "device": self.placement, "device_name": devices}
        return pd.DataFrame(columns, index=pd.Index(list(workload.ids), name="id", dtype="object"))

    def summary(self) -> dict[str, object]:
        """Return workload, devices, objective and bound for display."""
        return {
            "workload": self.workload_name,
            "problem": self.problem.name,
            "devices": len(set(self.placement.tolist())),
            "objective": self.objective,
            "bound": self.bound,
            "gap": show_gap(self.gap),
            "time_unit": objective_unit(self.problem, self.time_unit),
            "method": self.method,
        }

    __reduce__ = rebuild


def check_made_for(name: str, fingerprint: str, workload: Workload) -> None:
    """Raise InputError unless a workload is the one that a plan was made for."""
    if fingerprint != workload.fingerprint:
        raise InputError(
            f"the plan was made for {quote(name)} (fingerprint {fingerprint[:12]}), not for "
            f"{quote(workload.name)} ({workload.fingerprint[:12]}); plan again, or load the "
            "workload it names"
        )


def gap_between(objective: float, bound: float) -> float:
    """Return (objective − bound) / objective, in one unit: 0 if they meet, `inf` if unknown.

    Examples
    --------
    >>> gap_between(100.0, 99.0)
    0.01
    """
    if objective <= bound or objective == 0:
        return 0.0
    return math.inf if math.isinf(bound) else (objective - bound) / objective


def plan_of(given: Plan | Planned) -> Plan:
    """Return a plan, or the one that a `Result`, say, holds; InputError if there is none."""
    plan = getattr(given, "plan", given)
    if plan is None:
        why = ": ".join(str(getattr(given, key, "")) for key in ("status", "reason"))
        raise InputError(f"plan: the result has none ({why.strip(': ')})")
    if not isinstance(plan, Plan):
        raise InputError(
            f"plan: this is of type {type(plan).__name__}; give a Plan, or the Result that holds "
            "it; of a file, what load_plan returns. A JobPlan has functions of its own: "
            "verify_job_plan, explain_job, simulate_job (docs/job.md)"
        )
    return plan
