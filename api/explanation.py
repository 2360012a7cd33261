"""Parts of an explanation, with their text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..instances import NodeId, Plan
from ..instances.common.escape import markup, plain
from ..instances.common.units import show_bytes, show_count, show_percent, show_time, text_table
from ..runtime.verify.report import Load


@dataclass(frozen=True)
class Crossing:
    """Transfer of a node's output to other devices."""

    node: NodeId  # its id
    source: str  # source, targets: names of its device or stage, and of those that need it
    targets: tuple[str, ...]
    size_bytes: float | None  # of the output; None if the workload gives times alone
    paid: float  # time of all devices together for it, in the objective's span
    saved: float  # reduction of the plan's objective if it took no time


@dataclass(frozen=True)
class Remedy:
    """Effect of one change of the problem, by solving again from the plan."""

    change: str  # the change, in words
    objective: float | None  # of the best plan found in the time given; None if none was found
    bound: float  # no plan of the changed problem has a lower one; `-inf` if nothing is known


@dataclass(frozen=True)
class Move:
    """Objective of a plan after moving a node to another place."""

    to: str  # name of the device, stage or call
    objective: float  # of the plan then, verified; `inf` if it breaks a rule that makes it no plan
    broken: str = ""  # the first rule that it would break; empty if none
    # number of ancestors or descendants that move with it, so that no rule is broken
    further: int = 0


@dataclass(frozen=True)
class NodeMoves:
    """Objectives after moving a node, with all nodes of its colour, to every other place."""

    node: NodeId  # its id
    where: str  # name of its device, stage or call
    together: tuple[NodeId, ...]  # ids of the other nodes of its colour, which move with it
    moves: tuple[Move, ...]  # to every other place


#: Number of names of nodes or places that a list has at most.
LISTED = 4


def crossings_text(crossings: Sequence[Crossing], unit: str) -> str:
    """Return the table of transfers."""
    titles = ("node", "from", "to", "bytes", "paid", "saved without it")
    rows = [
        (
            str(c.node),
            c.source,
            ", ".join(c.targets[:LISTED]) + (" …" if len(c.targets) > LISTED else ""),
            "" if c.size_bytes is None else show_bytes(c.size_bytes),
            show_time(c.paid, unit),
            show_time(c.saved, unit),
        )
        for c in crossings
    ]
    return "Transfers that cost most:\n" + text_table(titles, rows, left=3)


def remedies_text(remedies: Sequence[Remedy], old: float | None, unit: str) -> str:
    """Return the table of changes; `old` is the plan's objective, None without a plan."""
    rows = [(r.change, _found(r, old, unit), _at_most(r, old, unit)) for r in remedies]
    head, last = "What would help", "at most"
    if old is None:
        head, last = "What would make a plan possible", "bound"
    return f"{head}, by solving again:\n" + text_table(("change", "found", last), rows, left=3)


def _found(remedy: Remedy, old: float | None, unit: str) -> str:
    if remedy.objective is None:
        return "no plan"
    found = show_time(remedy.objective, unit)
    return found if old is None else f"{found} ({_change(remedy.objective, old)})"


def _at_most(remedy: Remedy, old: float | None, unit: str) -> str:
    """Return the text of the bound of the changed problem."""
    if not math.isfinite(remedy.bound):
        return "unknown"
    if old is None:
        return show_time(remedy.bound, unit)
    return _change(min(remedy.bound, old), old)


def _change(new: float, old: float) -> str:
    """Return the relative change from an old time to a new one, in per cent."""
    change = new / old - 1 if old and math.isfinite(old) else 0.0
    return show_percent(change, 2, signed=True)


def moves_text(node: NodeMoves, old: float, unit: str) -> str:
    """Return the table of costs of moving a node."""
    if not node.moves:
        return f"Node {node.node} is in {node.where}; there is no other place in use."
    with_it = ""
    if node.together:
        listed = ", ".join(map(str, node.together[:LISTED]))
        more = len(node.together) - LISTED
        with_it = f", together with {listed}" + (f" and {more} more" if more > 0 else "")
    rows = [
        (
            move.to,
            move.broken
            or f"{show_time(move.objective, unit)} ({_change(move.objective, old)})"
            + (f", with {show_count(move.further, 'node')} next to it" if move.further else ""),
        )
        for move in node.moves
    ]
    head = f"Node {node.node} is in {node.where}; all else the same, moved{with_it}:\n"
    return head + text_table(("to", "objective, or what it breaks"), rows, left=2)


@dataclass(frozen=True, repr=False)
class Explanation:
    """Explanation of a plan: limiting device, most expensive transfers, remedies; shown as text.

    Parameters
    ----------
    plan
        The plan; None if there is none.
    unit
        Unit of times, that of the workload.
    objective
        Objective of the plan, recomputed.
    loads
        Load of every device, or stage, in the objective's span.
    limiting
        Name of the device or stage that limits; empty if there is no plan.
    reasons
        Sentences on what limits the plan, or why there is none.
    crossings
        The transfers that cost most.
    remedies
        Changes that would help, or would make a plan possible.
    node
        Objectives after moving a node, if one was given.

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
    node: NodeMoves | None = None

    def __str__(self) -> str:
        return "\n\n".join(plain(part) for part in self._paragraphs())

    def _paragraphs(self) -> Iterator[str]:
        if self.reasons:
            yield "\n".join(self.reasons)
        dear = [crossing for crossing in self.crossings if crossing.paid or crossing.saved]
        if dear:
            yield crossings_text(dear, self.unit)
        if self.remedies:
            old = None if self.plan is None else self.objective
            yield remedies_text(self.remedies, old, self.unit)
        if self.node is not None:
            yield moves_text(self.node, self.objective, self.unit)

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
