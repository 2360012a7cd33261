"""Reader of PipeDream's ``graph.txt``.

References
----------
Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019;
https://github.com/msr-fiddle/pipedream writes and reads the format.
"""

from __future__ import annotations

import math
import re

import numpy as np

from ..common.errors import prefix_errors, quote
from ..model.cluster import ACCELERATOR
from ..model.layers import Layers
from ..model.workload import Workload
from .source import Source

_NUMBERS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


def is_pipedream(source: Source) -> bool:
    """Whether the content looks like a PipeDream graph."""
    return "forward_compute_time" in source.text and " -- " in source.text and source.data is None


def read_pipedream(source: Source) -> Workload:
    """Return the workload that a PipeDream graph describes, in milliseconds.

    A node's time is its forward and backward time, both also in `Workload.extra`; its output is the
    sum of its activations. Its one configuration takes its activations per microbatch in flight,
    and twice its parameters for them and their gradients. ``stage_id`` is ignored. The file names
    neither devices nor bandwidth nor microbatches. InputError names the line, the node, the field.
    """
    index: dict[str, int] = {}
    names: list[str] = []
    numbers: list[dict[str, float]] = []
    edges: set[tuple[str, str]] = set()
    for row, line in enumerate(source.text.splitlines(), 1):
        if not line.strip():
            continue
        if line.startswith("\t"):
            ends = [part.strip() for part in line.split(" -- ")]
            if len(ends) != 2 or not all(ends):
                source.fail(f"line {row}: an edge is written as TAB, source, ' -- ', target")
            edges.add((ends[0], ends[1]))
            continue
        node, description, fields = _node_line(source, row, line)
        if node in index:
            source.fail(f"line {row}: node {node} occurs twice; ids must differ")
        index[node] = len(index)
        names.append(description)
        numbers.append(fields)
    if not index:
        source.fail("no nodes; a workload needs at least one")
    for tail, head in sorted(edges):
        for node in (tail, head):
            if node not in index:
                source.fail(
                    f"edge {tail} → {head}: unknown node {quote(node)}; "
                    "add its line or remove the edge"
                )
    column = {key: np.array([node[key] for node in numbers]) for key in _NUMBERS}
    forward, backward = column["forward_compute_time"], column["backward_compute_time"]
    activation, parameters = column["activation_size"], column["parameter_size"]
    pairs = sorted((index[u], index[v]) for u, v in edges)
    with prefix_errors(source.file, source.stem):
        return Workload(
            name=source.stem,
            ids=tuple(index),
            edges=np.array(pairs, np.int64).reshape(-1, 2),
            times={ACCELERATOR: forward + backward},
            memory_bytes=activation + 2 * parameters,
            transfer=None,
            output_bytes=activation,
            names=tuple(names),
            time_unit="ms",
            extra={"forward_time": forward, "backward_time": backward},
            layers=Layers(
                node=np.arange(len(index)),
                degree=np.ones(len(index), np.int64),
                label=("vanilla",) * len(index),
                recomputes=np.zeros(len(index), np.bool_),
                time=forward + backward,
                weight_bytes=parameters,
                bytes_per_microbatch=activation,
                fixed_bytes=2 * parameters,
                edge_bytes=np.array([activation[u] for u, _ in pairs]),
                sync_bytes=({},) * len(index),
            ),
        )


def _node_line(source: Source, row: int, line: str) -> tuple[str, str, dict[str, float]]:
    parts = line.strip().split(" -- ")
    if parts[-1].startswith("stage_id="):
        parts.pop()
    if len(parts) < 3:
        source.fail(f"line {row}: a node is written as id -- description -- numbers")
    node, description, text = parts[0].strip(), " -- ".join(parts[1:-1]), parts[-1]
    given = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,\s]+)", text))
    fields = dict.fromkeys(_NUMBERS, 0.0)
    for key in _NUMBERS:
        if key not in given:
            source.fail(f"line {row}: node {node}: {key} is missing; add it")
        for item in given[key].strip("[]").split(";"):
            try:
                value = float(item)
            except ValueError:
                value = math.nan
            if not 0 <= value < math.inf:
                source.fail(
                    f"line {row}: node {node}: {key} is {quote(item.strip())}; "
                    "it must be a finite number of at least 0"
                )
            fields[key] += value
    return node, description, fields
