"""Messages that share links fairly: max–min rates, kept up to date as messages come and go.

References
----------
Bertsekas and Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2: progressive filling.
"""

from __future__ import annotations

from numba import njit
import numpy as np


@njit(cache=True)
def fill(flows, count, route_of, route_at, route_to, rate, speed, room, users):  # type: ignore[no-untyped-def]
    """Set the speed of the first `count` of `flows` to the max–min fair one.

    All speeds grow alike until a link is full; those on it stop, the others grow on.

    Parameters
    ----------
    route_of
        Shape (jobs,): route of each flow; `route_at`, `route_to` are its links.
    rate
        Shape (L,): bandwidth of each link.
    room, users
        Shape (L,): workspace.

    Notes
    -----
    O(links that fill up · flows · links on a route).
    """
    for f in range(count):
        for r in range(route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]):
            room[route_to[r]], users[route_to[r]] = rate[route_to[r]], 0
    for f in range(count):
        speed[flows[f]] = -1.0
        for r in range(route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]):
            users[route_to[r]] += 1
    left = count
    while left > 0:
        full, least = -1, np.inf
        for f in range(count):
            if speed[flows[f]] < 0:
                for r in range(route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]):
                    link = route_to[r]
                    if room[link] < least * users[link]:
                        full, least = link, room[link] / users[link]
        least = max(0.0, least)
        for f in range(count):
            begin, end = route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]
            if speed[flows[f]] >= 0:
                continue
            for r in range(begin, end):
                if route_to[r] == full:
                    speed[flows[f]] = least
                    left -= 1
                    break
            if speed[flows[f]] >= 0:
                for r in range(begin, end):
                    room[route_to[r]] -= least
                    users[route_to[r]] -= 1


@njit(cache=True)
def advance(flows, count, rest, speed, elapsed):  # type: ignore[no-untyped-def]
    """Let the flows run for a time: `rest` is the work left of each."""
    for f in range(count):
        rest[flows[f]] = max(0.0, rest[flows[f]] - elapsed * speed[flows[f]])


@njit(cache=True)
def next_to_end(flows, count, rest, speed):  # type: ignore[no-untyped-def]
    """Return the place of the flow that ends first, of equals the earliest, and in what time."""
    best, least = -1, np.inf
    for f in range(count):
        if rest[flows[f]] < least * speed[flows[f]]:
            best, least = f, rest[flows[f]] / speed[flows[f]]
    return best, least
