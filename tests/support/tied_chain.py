"""A chain of layers whose ends share a weight."""

from __future__ import annotations

import numpy as np

from stagecut import Workload
from stagecut.instances.model.tied_weights import with_ties
from stagecut.instances.model.workload import Copy, Tie


def chain(
    layers: int = 4, *, users: tuple[int, ...] = (0, -1), transfer: float = 0.125
) -> Workload:
    """Return a chain in training; its layer v is undone by node 2 · layers − 1 − v."""
    n = 2 * layers
    users = tuple(v % layers for v in users)
    once = Workload(
        name="chain",
        ids=tuple(f"f{v}" for v in range(layers)) + tuple(f"b{v}" for v in reversed(range(layers))),
        edges=np.array([(v, v + 1) for v in range(n - 1)]),
        times={"accelerator": np.ones(n)},
        memory_bytes=np.where(np.isin(np.arange(n), [users[0], n - 1 - users[0]]), [10.0], [1.0]),
        transfer=np.full(n, transfer),
        backward=np.arange(n) >= layers,
        colours=np.minimum(np.arange(n), np.arange(n)[::-1]),
        colour_labels=tuple(f"f{v}" for v in range(layers)),
    )
    tie = Tie("table", tuple(Copy((v, n - 1 - v), v, n - 1 - v) for v in users), 9.0, 3.0, 6.0, 0.5)
    return with_ties(once, [tie])
