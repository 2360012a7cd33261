"""Graph partitioners as baselines: METIS and Scotch, which balance compute and cut few transfers.

They ignore memory and CPU cores, and count no transfers in the load of a device. Each colour is a
vertex of the graph; an edge between two weighs the transfers of all nodes of one that feed the
other, as in the baseline of Tarnawski et al., NeurIPS 2020, section 6.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph, colour_units, hypergraph
from ...instances import InputError, Placement, Solution, Throughput
from ...instances.common.arrays import Floats, Ints
from ..core.search import Search

#: Sum of the weights, roughly, to which they are scaled: partitioners take integers.
WEIGHT_SUM = 10_000_000

#: Names of Scotch's program: its own, and the one in Debian's package.
GPART = ("gpart", "scotch_gpart")


@dataclass(frozen=True, eq=False)
class _Graph:
    """Units as vertices, with integer weights of vertices, (U,), and of edges, by vertex."""

    units: Hypergraph
    accelerators: list[int]
    weights: list[int]
    neighbours: list[list[int]]
    edge_weights: list[list[int]]

    def placement(self, parts: Ints) -> Placement:
        return Placement(self.units.expand(np.array(self.accelerators)[parts]))


def metis(task: Task[Throughput], search: Search[Solution]) -> None:
    """Split the units into one part per accelerator by METIS, if pymetis is installed.

    References
    ----------
    Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular
    Graphs", SIAM J. Sci. Comput. 20(1), 1998.
    """
    try:
        import pymetis
    except ImportError:
        raise InputError(
            "method metis: pymetis is not installed; in Stagecut's folder: "
            "pip install -c constraints.txt '.[baselines]'"
        ) from None
    graph = _graph(task)
    if graph is None:
        return  # placement rules leave no accelerator
    starts = np.cumsum([0, *map(len, graph.neighbours)])
    with search.phase("solve"):
        _, parts = pymetis.part_graph(
            len(graph.accelerators),
            pymetis.CSRAdjacency(starts.tolist(), list(chain.from_iterable(graph.neighbours))),
            vweights=graph.weights,
            eweights=list(chain.from_iterable(graph.edge_weights)),
            options=pymetis.Options(seed=search.limits.seed),
        )
    search.offer(graph.placement(np.array(parts)))


def scotch(task: Task[Throughput], search: Search[Solution]) -> None:
    """Split the units into one part per accelerator by Scotch's program, `gpart`.

    Raises
    ------
    InputError
        If the program is not installed, or fails.

    References
    ----------
    Pellegrini, "Distillating knowledge about Scotch", Dagstuhl Seminar 09061, 2009.
    """
    program = next(filter(None, map(shutil.which, GPART)), None)
    if program is None:
        raise InputError(
            "method scotch: its program gpart is not on the PATH; install Scotch: "
            "apt install scotch, conda install scotch or brew install scotch"
        )
    graph = _graph(task)
    if graph is None:
        return
    with TemporaryDirectory() as folder, search.phase("solve"):
        source, mapping = Path(folder, "graph.grf"), Path(folder, "parts.map")
        source.write_text(_grf(graph), encoding="ascii")
        done = subprocess.run(
            [program, str(len(graph.accelerators)), source, mapping],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not mapping.exists():
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise InputError(f"method scotch: {program}: {why}; use method metis")
        rows = np.loadtxt(mapping, dtype=np.int64, skiprows=1, ndmin=2)
    parts = np.empty(len(rows), dtype=np.int64)
    parts[rows[:, 0]] = rows[:, 1]
    search.offer(graph.placement(parts))


def _grf(graph: _Graph) -> str:
    """Return the graph in Scotch's format, with edge and vertex weights, numbered from 0."""
    edges = sum(map(len, graph.neighbours))
    lines = ["0", f"{len(graph.weights)} {edges}", "0 011"]
    for weight, near, weights in zip(
        graph.weights, graph.neighbours, graph.edge_weights, strict=True
    ):
        pairs = (f"{w} {v}" for w, v in zip(weights, near, strict=True))
        lines.append(" ".join([f"{weight} {len(near)}", *pairs]))
    return "\n".join(lines) + "\n"


def _graph(task: Task[Throughput]) -> _Graph | None:
    """Return the graph to partition; None if there is no accelerator."""
    costs = task.costs
    accelerators = [d for d, k in enumerate(costs.kind_of.tolist()) if not costs.host[k]]
    if not accelerators:
        return None
    units = hypergraph(task, colour_units(task))
    kind = int(costs.kind_of[accelerators[0]])
    time = units.compute[kind].sum(axis=0)
    unit = units.unit_of.tolist()
    between: defaultdict[tuple[int, int], float] = defaultdict(float)
    for u, successors in enumerate(task.workload.successors):
        for other in {unit[v] for v in successors} - {unit[u]}:
            between[unit[u], other] += float(costs.transfer[kind, u])
            between[other, unit[u]] += float(costs.transfer[kind, u])
    pairs = sorted(between)
    neighbours: list[list[int]] = [[] for _ in range(units.size)]
    edge_weights: list[list[int]] = [[] for _ in range(units.size)]
    integers = _integer_weights(np.array([between[p] for p in pairs]))
    for (a, b), weight in zip(pairs, integers, strict=True):
        neighbours[a].append(b)
        edge_weights[a].append(int(weight))
    weights = _integer_weights(np.where(np.isinf(time), 0.0, time)).tolist()
    return _Graph(units, accelerators, weights, neighbours, edge_weights)


def _integer_weights(values: Floats) -> Ints:
    total = float(values.sum())
    return np.maximum(1, np.round(values * (WEIGHT_SUM / total if total else 0.0))).astype(int)
