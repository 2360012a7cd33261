"""Conversion of tied weights: copies on several devices, or one shared under a colour.

*Colour.* All users of the weight share a device, which keeps it once.

*Copies.* Each user keeps the weight, its gradient and its optimizer state, as pipelines do whose
first and last stage hold the embedding each (Narayanan et al., "Efficient large-scale language
model training on GPU clusters using Megatron-LM", SC 2021). Two copies on one device count twice,
so memory is never counted too low. In training the gradients are added up before every step of
the optimizer. For that a chain of *exchange nodes*, of no time and no memory, leads from each user
that delivers a gradient to the next: node x has the colour of the one user and an edge to the
other, and its output are the 2 b bytes that a ring all-reduce of b bytes moves over the links of
two devices, there and back. Users on one device so exchange nothing, and any problem prices the
all-reduce as it prices other data. It happens once per batch: of M microbatches, each bears a part,
2 b / M. Without M a batch is one microbatch, and the price an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise

import numpy as np

from ..common.arrays import Floats, Ints
from ..common.choices import Tied
from ..common.errors import InputError
from ..common.units import NodeId
from .workload import Copy, Tie, Workload, node_columns


def tied_as(workload: Workload, tied: Tied | str, microbatches: int = 1) -> Workload:
    """Return the workload with tied weights in copies, or shared under a colour.

    Parameters
    ----------
    workload
        With copies or colours; one without ties is returned as it is.
    tied
        ``copies`` or ``colour``.
    microbatches
        M, over which the exchange of gradients is spread.

    Returns
    -------
    Workload
        The same nodes; with copies and a backward pass also the exchange nodes.

    Raises
    ------
    InputError
        If `tied` is neither, M is below 1, or ties name more bytes or time than nodes have.

    Examples
    --------
    >>> from stagecut import load
    >>> shared = tied_as(load("bert-large-training"), "colour")
    >>> shared.n, tied_as(shared, "copies").n
    (104, 105)
    """
    tied = Tied.of("tied", tied)
    if microbatches < 1:
        raise InputError(f"microbatches: {microbatches}; it must be at least 1")
    try:
        return with_ties(_without_ties(workload), workload_ties(workload), tied, microbatches)
    except InputError as error:
        raise InputError(f"its ties do not fit its nodes: {error}") from None


def with_ties(
    once: Workload, ties: Sequence[Tie], tied: Tied = Tied.COPIES, microbatches: int = 1
) -> Workload:
    """Return a workload with ties that it does not have yet.

    In `once` each weight exists once, with its first user, and colours do not express ties.
    """
    if not ties:
        return once
    made = _coloured(once, ties) if tied == Tied.COLOUR else _copied(once, ties, microbatches)
    return replace(made, provenance={**once.provenance, "shared_weights": tied.value})


def are_copied(workload: Workload) -> bool:
    """Whether the workload has tied weights, each user with a copy."""
    for tie in workload.ties[:1]:
        colours = {int(workload.colours[copy.holder]) for copy in tie.copies}
        return len(colours) > 1 or -1 in colours
    return False


def exchange_nodes(workload: Workload) -> tuple[int, ...]:
    """Return the exchange nodes of all ties, increasing."""
    return tuple(sorted(x for tie in workload.ties for x in tie.exchange))


def workload_ties(workload: Workload) -> tuple[Tie, ...]:
    """Return the ties of a workload as they are without its exchange nodes."""
    number = _numbers(workload)
    return tuple(
        replace(
            tie,
            exchange=(),
            copies=tuple(
                Copy(
                    tuple(number[v] for v in copy.nodes),
                    number[copy.holder],
                    None if copy.deliverer is None else number[copy.deliverer],
                )
                for copy in tie.copies
            ),
        )
        for tie in workload.ties
    )


def _numbers(workload: Workload) -> dict[int, int]:
    """Return the number of each node once exchange nodes are left out."""
    gone = set(exchange_nodes(workload))
    return {v: k for k, v in enumerate(v for v in range(workload.n) if v not in gone)}


def _without_ties(workload: Workload) -> Workload:
    """Return the workload without ties and exchange nodes, each weight at its first user."""
    if not workload.ties:
        return workload
    number, ties = _numbers(workload), workload_ties(workload)
    rows = np.array(list(number))
    edges = [(number[u], number[v]) for u, v in workload.edges.tolist() if {u, v} <= number.keys()]
    labels = [_label(workload, v) for v in rows.tolist()]
    ids = tuple(workload.ids[v] for v in rows.tolist())
    for tie in ties:
        for copy in tie.copies:
            for v in copy.nodes:
                labels[v] = ids[min(copy.nodes)] if len(copy.nodes) > 1 else None
    colours, names = _numbered(labels)
    once = replace(
        workload,
        **node_columns(workload, rows),
        ids=ids,
        edges=np.array(edges, np.int64).reshape(-1, 2),
        colours=colours,
        colour_labels=names,
        names=tuple(workload.names[v] for v in rows.tolist()),
        ties=(),
    )
    return _with_bytes(once, ties, -1.0) if are_copied(workload) else once


def _coloured(once: Workload, ties: Sequence[Tie]) -> Workload:
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    for tie in ties:
        nx.add_path(graph, [v for copy in tie.copies for v in copy.nodes])
    labels = [_label(once, v) for v in range(once.n)]
    for members in nx.connected_components(graph):
        for v in members:
            labels[v] = once.ids[min(members)]
    colours, names = _numbered(labels)
    return replace(once, colours=colours, colour_labels=names, ties=tuple(ties))


def _copied(once: Workload, ties: Sequence[Tie], microbatches: int) -> Workload:
    position = {v: k for k, v in enumerate(once.order)}
    ids, taken = list(once.ids), set(map(str, once.ids))
    labels = [_label(once, v) for v in range(once.n)]
    edges, sizes, times, made = once.edges.tolist(), [], [], []
    for tie in ties:
        delivering = [(c.deliverer, c) for c in tie.copies if c.deliverer is not None]
        chain = sorted(v for v, _ in delivering) if tie.gradient_bytes else []
        chain.sort(key=lambda v: position[v])  # edges along an order close no cycle
        first = len(ids)
        for u, v in pairwise(chain):
            edges += [(u, len(ids)), (len(ids), v)]
            ids.append(_fresh(f"{tie.weight}.exchange", taken))
            labels.append(labels[u])
            sizes.append(tie.exchange_bytes / microbatches)
            times.append((tie.exchange_time or 0.0) / microbatches)
        made.append(replace(tie, exchange=tuple(range(first, len(ids)))))
    new = len(sizes)
    colours, names = _numbered(labels)
    columns = node_columns(once, np.append(np.arange(once.n), np.full(new, -1)))
    for key, values in (("transfer", times), ("output_bytes", sizes), ("backward", [True] * new)):
        if columns[key] is not None:
            columns[key][once.n :] = values
    grown = replace(
        once,
        **columns,
        ids=tuple(ids),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        colours=colours,
        colour_labels=names,
        names=(*once.names, *map(str, ids[once.n :])),
        ties=tuple(made),
    )
    return _with_bytes(grown, ties, 1.0)


def _with_bytes(workload: Workload, ties: Sequence[Tie], sign: float) -> Workload:
    """Return the workload with the bytes of all copies but the first added or removed."""
    memory = workload.memory_bytes.copy()
    extra: Mapping[str, Floats] = {key: x.copy() for key, x in workload.extra.items()}
    for tie in ties:
        for copy in tie.copies[1:]:
            for column, v, size in tie.bytes_of(copy):
                memory[v] += sign * size
                if column in extra:
                    extra[column][v] += sign * size
    return replace(workload, memory_bytes=memory, extra=extra)


def _label(workload: Workload, v: int) -> NodeId | None:
    colour = int(workload.colours[v])
    return None if colour < 0 else workload.colour_labels[colour]


def _numbered(labels: Sequence[NodeId | None]) -> tuple[Ints, tuple[NodeId, ...]]:
    """Return the colours of these labels, numbered as they first occur."""
    numbers: dict[NodeId, int] = {}
    colours = [-1 if x is None else numbers.setdefault(x, len(numbers)) for x in labels]
    return np.array(colours, np.int64), tuple(numbers)


def _fresh(name: str, taken: set[str]) -> str:
    """Return a name that is not in `taken`, and add it."""
    free = next(x for k in count(1) if (x := name if k == 1 else f"{name}#{k}") not in taken)
    taken.add(free)
    return free
