"""Reachability in directed graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def leads_to(
    after: Mapping[int, Iterable[int]] | Sequence[Iterable[int]],
    starts: Iterable[int],
    targets: set[int],
) -> bool:
    """Return whether a path with at least one edge leads from `starts` into `targets`.

    `after` are the successors of each node. O(n + m).

    Examples
    --------
    >>> leads_to([[1], [2], []], {0}, {2})
    True
    >>> leads_to([[1], [2], []], {2}, {2})
    False
    """
    seen = set(starts)
    waiting = list(seen)
    while waiting:
        for v in after[waiting.pop()]:
            if v in targets:
                return True
            if v not in seen:
                seen.add(v)
                waiting.append(v)
    return False
