"""Parts of an explanation: limiting device, transfers, remedies, moves."""

from __future__ import annotations

from dataclasses import dataclass

from ...instances import NodeId


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
    """Effect of one change of the problem, by solving again from the plan.

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
    """Cost of moving a node to another device.

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
class MoveGains:
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
