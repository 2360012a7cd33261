"""Messages that share links fairly: max–min rates, kept up to date as messages come and go.

References
----------
Bertsekas and Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2: progressive filling.
"""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import inner

#: Relative differences that are rounding.
SLACK = 1e-12


@inner
def fill(
    flows, count, route_of, route_at, route_to, rate, speed, stopping, room, users
):  # fmt: skip
    """Set the speed of the first `count` of `flows` to the max–min fair one.

    All speeds grow alike until a link is full; those on it stop, the others grow on.

    Parameters
    ----------
    route_of
        Shape (jobs,): route of each flow; `route_at`, `route_to` are its links.
    rate
        Shape (L,): bandwidth of each link.
    stopping, room, users
        Workspace: as long as `flows`, and a number per link twice.

    Notes
    -----
    O(different speeds · flows · links on a route).
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
        least = np.inf
        for f in range(count):
            if speed[flows[f]] < 0:
                for r in range(route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]):
                    least = min(least, room[route_to[r]] / users[route_to[r]])
        full = least * (1 + SLACK)
        stopped = 0
        for f in range(count):
            if speed[flows[f]] < 0:
                for r in range(route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]):
                    if room[route_to[r]] <= full * users[route_to[r]]:
                        speed[flows[f]] = least
                        stopping[stopped] = flows[f]
                        stopped += 1
                        break
        for f in range(stopped):
            for r in range(route_at[route_of[stopping[f]]], route_at[route_of[stopping[f]] + 1]):
                room[route_to[r]] -= least
                users[route_to[r]] -= 1
        left -= stopped


@inner
def advance(flows, count, rest, speed, elapsed):
    """Let the flows run for a time: `rest` is the work left of each."""
    for f in range(count):
        rest[flows[f]] = max(0.0, rest[flows[f]] - elapsed * speed[flows[f]])


@inner
def time_to_end(flows, count, rest, speed):
    """Return in what time the first flow ends."""
    least = np.inf
    for f in range(count):
        if rest[flows[f]] < least * speed[flows[f]]:
            least = rest[flows[f]] / speed[flows[f]]
    return least
