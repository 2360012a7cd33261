"""Text of the parts of an explanation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...instances.common.quantities import show_bytes, show_percent, show_time, text_table
from .answers import Crossing, MoveGains, Remedy

#: Names of this many nodes or places are listed; of others, how many.
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
    """Return how much less or more a time is than another, in per cent."""
    change = new / old - 1 if old and math.isfinite(old) else 0.0
    return show_percent(change, 2, signed=True)


def moves_text(node: MoveGains, old: float, unit: str) -> str:
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
            + (f", with {move.further} nodes next to it" if move.further else ""),
        )
        for move in node.moves
    ]
    head = f"Node {node.node} is in {node.where}; all else the same, moved{with_it}:\n"
    return head + text_table(("to", "objective, or what it breaks"), rows, left=2)
