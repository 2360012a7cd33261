"""The result of a search: status, plan, bound, trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...instances import Limit, Plan, Status
from ...instances.common.units import show_gap
from ...instances.model.summary import Summarised
from .search import Point

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Result(Summarised):
    """Outcome of a search: its plan and bound, and why it stopped.

    Parameters
    ----------
    status
        ``optimal`` (gap at most 1e-6), ``feasible``, ``infeasible``, or ``no solution`` (none
        found within the limit, and infeasibility is not proved).
    limit
        The limit that ended it: ``time``, ``nodes`` or ``interrupt``; ``none`` if it ended by
        itself: at the gap asked for or, for methods that prove nothing, when they had tried
        everything.
    plan
        The best plan, verified; None if there is none.
    bound
        Proved lower bound on the objective of every plan; `-inf` if none is known.
    bound_origin
        Name of the proof of the bound.
    method
        Method or strategy that found the plan.
    seconds
        Wall-clock time of the whole search.
    trace
        Incumbent and bound over time.
    phases
        Seconds of each phase: ``build``, ``solve``, ….
    versions
        Versions of Stagecut and of the solvers used.
    notes
        Remarks for the user: what ``auto`` chose and why, why a start was not used.
    reason
        Why the problem is infeasible; empty if it is not.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> result = stagecut.solve(workload, cluster, method="greedy")
    >>> result.status, result.limit, result.gap is None
    ('feasible', 'none', False)
    """

    status: Status
    limit: Limit
    plan: Plan | None
    bound: float
    bound_origin: str
    method: str
    seconds: float
    trace: tuple[Point, ...]
    phases: dict[str, float]
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def objective(self) -> float | None:
        """Objective of the plan, by definition; None without a plan."""
        return None if self.plan is None else self.plan.objective

    @property
    def gap(self) -> float | None:
        """(objective − bound) / objective; None without a plan."""
        return None if self.plan is None else self.plan.gap

    def trace_to_pandas(self) -> pd.DataFrame:
        """Return one row per improvement: seconds, objective, bound, gap."""
        import pandas as pd

        rows = [(p.seconds, p.objective, p.bound, p.gap) for p in self.trace]
        return pd.DataFrame(rows, columns=["seconds", "objective", "bound", "gap"])

    def summary(self) -> dict[str, object]:
        """Return status, objective, bound and limit by name, for display."""
        return {
            "status": self.status,
            "objective": self.objective,
            "bound": self.bound,
            "gap": "none" if self.gap is None else show_gap(self.gap),
            **({} if self.plan is None else {"time_unit": self.plan.summary()["time_unit"]}),
            "limit": self.limit,
            "method": self.method,
            "seconds": self.seconds,
        }
