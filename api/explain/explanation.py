"""What an explanation holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...instances import NodeId, Plan
from ...instances.common.escape import markup
from ...runtime.verify.loads import Load


@dataclass(frozen=True)
class Crossing:
    """The output of a node that other devices need.

    Parameters
    ----------
    node
        Its id.
    source, targets
        Names of its device or stage, and of those that need it.
    size_bytes
        Of the output; None if the workload gives times alone.
    paid
        Time that all devices together pay for it, in the objective's span.
    saved
        By how much the objective of the same plan would be less if it took no time.
    """

    node: NodeId
    source: str
    targets: tuple[str, ...]
    size_bytes: float | None
    paid: float
    saved: float


@dataclass(frozen=True)
class Remedy:
    """What a change of the question would bring, by solving again with the plan as a start.

    Parameters
    ----------
    change
        What is different.
    objective
        Of the best plan found, in the time given; None if none was found.
    bound
        No plan of the changed problem has a lower one; `-inf` if nothing is known.
    """

    change: str
    objective: float | None
    bound: float


@dataclass(frozen=True)
class Move:
    """What it would cost to have a node on another device, all else the same.

    Parameters
    ----------
    to
        Name of the device, stage or call.
    objective
        Of the plan then, verified; `inf` if it breaks a rule that makes it no plan.
    broken
        The first rule that it would break; empty if none.
    further
        How many nodes before or behind it in the graph move with it, so that no rule is broken.
    """

    to: str
    objective: float
    broken: str = ""
    further: int = 0


@dataclass(frozen=True)
class Moves:
    """Why a node is where it is.

    Parameters
    ----------
    node
        Its id.
    where
        Name of its device, stage or call.
    together
        Ids of what must move with it, since it shares a colour.
    moves
        To every other place.
    """

    node: NodeId
    where: str
    together: tuple[NodeId, ...]
    moves: tuple[Move, ...]


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why a plan is as good as it is; it shows itself as text.

    Parameters
    ----------
    plan
        What is explained; None if there is none.
    unit
        Of times: the workload's.
    objective
        Of the plan, recomputed.
    loads
        What every device, or stage, does in the objective's span.
    limiting
        Name of the device or stage that limits; empty if there is no plan.
    reasons
        Sentences: what limits, and why.
    crossings
        The transfers that cost most.
    remedies
        What would help, or would make a plan possible.
    node
        Why a node is where it is, if that was asked.

    Examples
    --------
    >>> import stagecut
    >>> workload, cluster = stagecut.load("gpt2-xl"), stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> explanation = stagecut.explain(workload, plan, seconds=0)
    >>> explanation.limiting in [load.name for load in explanation.loads]
    True
    """

    plan: Plan | None
    unit: str
    objective: float
    loads: tuple[Load, ...]
    limiting: str
    reasons: tuple[str, ...]
    crossings: tuple[Crossing, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    node: Moves | None = None

    def __str__(self) -> str:
        from .words import text

        return text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the text that a notebook shows, as it is."""
        return f"<pre>{markup(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it but the plan, as plain values."""
        return {
            "objective": self.objective,
            "bound": None if self.plan is None else self.plan.bound,
            "time_unit": self.unit,
            "limiting": self.limiting,
            "reasons": list(self.reasons),
            "loads": [asdict(load) for load in self.loads],
            "transfers": [asdict(crossing) for crossing in self.crossings],
            "remedies": [asdict(remedy) for remedy in self.remedies],
            "node": None if self.node is None else asdict(self.node),
        }
