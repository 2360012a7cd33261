"""An explanation in words."""

from __future__ import annotations

import math

from ...instances.common.escape import plain
from ...instances.common.quantities import show_bytes, show_time, text_table
from .explanation import Explanation, Moves, Remedy

#: Ids of this many nodes are listed, of others their number.
LISTED = 4


def text(it: Explanation) -> str:
    """Return it as lines of text, a paragraph for each question."""
    parts = []
    if it.reasons:
        parts.append("\n".join(it.reasons))
    if it.crossings:
        parts.append("Transfers that cost most:\n" + _crossings(it))
    if it.remedies:
        first = "What would help" if it.plan is not None else "What would make a plan possible"
        parts.append(f"{first}, by solving again:\n" + _remedies(it))
    if it.node is not None:
        parts.append(_moves(it.node, it))
    return plain("\n\n".join(parts))


def _crossings(it: Explanation) -> str:
    titles = ("node", "from", "to", "bytes", "paid", "saved without it")
    rows = [
        (
            str(c.node),
            c.source,
            ", ".join(c.targets[:LISTED]) + (" …" if len(c.targets) > LISTED else ""),
            "" if c.size_bytes is None else show_bytes(c.size_bytes),
            show_time(c.paid, it.unit),
            show_time(c.saved, it.unit),
        )
        for c in it.crossings
    ]
    return text_table(titles, rows, left=3)


def _remedies(it: Explanation) -> str:
    rows = [(r.change, _found(r, it), _at_most(r, it)) for r in it.remedies]
    last = "bound" if it.plan is None else "at most"
    return text_table(("change", "found", last), rows, left=3)


def _found(remedy: Remedy, it: Explanation) -> str:
    if remedy.objective is None:
        return "no plan"
    if it.plan is None:
        return show_time(remedy.objective, it.unit)
    return f"{show_time(remedy.objective, it.unit)} ({_change(remedy.objective, it.objective)})"


def _at_most(remedy: Remedy, it: Explanation) -> str:
    """Say what the bound leaves: no plan of the changed problem is better."""
    if not math.isfinite(remedy.bound):
        return "unknown"
    if it.plan is None:
        return show_time(remedy.bound, it.unit)
    return _change(min(remedy.bound, it.objective), it.objective)


def _change(new: float, old: float) -> str:
    """Return how much less or more a time is than another, in per cent."""
    if not old:
        return "±0 %"
    change = 100 * (new / old - 1)
    return "±0 %" if abs(change) < 0.005 else f"{'−' if change < 0 else '+'}{abs(change):.2f} %"


def _moves(node: Moves, it: Explanation) -> str:
    with_it = ""
    if node.together:
        listed = ", ".join(map(str, node.together[:LISTED]))
        more = len(node.together) - LISTED
        with_it = f", together with {listed}" + (f" and {more} more" if more > 0 else "")
    rows = [
        (
            move.to,
            move.broken
            or f"{show_time(move.objective, it.unit)} ({_change(move.objective, it.objective)})"
            + (f", with {move.further} nodes next to it" if move.further else ""),
        )
        for move in node.moves
    ]
    if not rows:
        return f"Node {node.node} is in {node.where}; there is no other place in use."
    head = f"Node {node.node} is in {node.where}; all else the same, moved{with_it}:\n"
    return head + text_table(("to", "objective, or what it breaks"), rows, left=2)
