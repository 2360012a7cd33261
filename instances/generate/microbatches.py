"""A graph of one microbatch, repeated for each microbatch of an iteration, as traces have it.

Node v of microbatch m is numbered m·n + v and called ``ID#m``. All microbatches of a node, and the
nodes of its colour, share one device, because they use the same weights. Weights, gradients and
optimizer state are there once, with microbatch 0; activations once per microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..common.arrays import Floats
from ..model.ties import Copy, Tie
from ..model.workload import Workload

#: What a microbatch has of its own; the other columns of `Workload.extra` are there once.
OF_EACH = frozenset({"flops", "activation_bytes"})


def per_microbatch(once: Workload, ties: Sequence[Tie], count: int) -> tuple[Workload, list[Tie]]:
    """Return the graph of `count` microbatches and its ties.

    Parameters
    ----------
    once
        Of one microbatch, with ``activation_bytes`` among its extras; colours say nothing of ties.
    ties
        Of `once`, without exchange nodes. Their gradients are delivered by the last microbatch.
    """
    if count == 1:
        return once, list(ties)
    n, shift = once.n, np.arange(count)[:, None] * once.n
    activations = np.tile(once.extra["activation_bytes"], count)
    activations[:n] = once.memory_bytes

    def first(values: Floats) -> Floats:
        return np.concatenate([values, np.zeros((count - 1) * n)])

    def each(values: Floats | None) -> Floats | None:
        return None if values is None else np.tile(values, count)

    alone = np.arange(n) + len(once.colour_labels)
    labels = np.where(once.colours >= 0, once.colours, alone)
    _, lead, colours = np.unique(labels, return_index=True, return_inverse=True)
    workload = replace(
        once,
        ids=tuple(f"{node}#{m}" for m in range(count) for node in once.ids),
        names=tuple(f"{node}#{m}" for m in range(count) for node in once.names),
        edges=(once.edges[None] + shift[:, :, None]).reshape(-1, 2),
        times={kind: np.tile(values, count) for kind, values in once.times.items()},
        memory_bytes=activations,
        transfer=each(once.transfer),
        output_bytes=each(once.output_bytes),
        backward=np.tile(once.backward, count),
        colours=np.tile(colours, count),
        colour_labels=tuple(once.ids[v] for v in lead.tolist()),
        extra={
            key: np.tile(values, count) if key in OF_EACH else first(values)
            for key, values in once.extra.items()
        },
        provenance={**once.provenance, "microbatches": str(count)},
    )
    return workload, [
        replace(tie, copies=tuple(_copy(copy, n, count) for copy in tie.copies)) for tie in ties
    ]


def _copy(copy: Copy, n: int, count: int) -> Copy:
    nodes = tuple(m * n + v for m in range(count) for v in copy.nodes)
    late = None if copy.deliverer is None else (count - 1) * n + copy.deliverer
    return Copy(nodes, copy.holder, late)
