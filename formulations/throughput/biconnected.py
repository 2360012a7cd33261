"""PipeDream's layers: branches that join again are one layer, so that a path of layers is left."""

from __future__ import annotations

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Ints
from ...instances.model.contiguity import pipeline_edges
from ..task import Task
from .hypergraph import hypergraph, merge_cycles, pipeline_units


def layer_units(task: Task[Throughput]) -> Ints:
    """Return the unit of each node if biconnected components are merged; shape (n,).

    For each biconnected component of the pipeline edges, taken as undirected, the sources of its
    edges are merged. Edges out of units that only prepare inputs (neither they nor any of their
    ancestors take time on any kind of device) are left out: they would connect almost everything.

    References
    ----------
    Tarnawski et al., NeurIPS 2020, section 5 (baseline); Narayanan et al., "PipeDream", SOSP 2019.
    """
    import networkx as nx

    units = pipeline_units(task)
    graph = hypergraph(task, units)
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(graph.size))
    order.add_edges_from(graph.edges.tolist())
    idle = (graph.compute == 0).all(axis=(0, 1))
    prepares: dict[int, bool] = {}
    for unit in nx.topological_sort(order):
        prepares[unit] = bool(idle[unit]) and all(prepares[u] for u in order.predecessors(unit))
    edges = [(u, v) for u, v in order.edges if not prepares[u]]
    source = {frozenset(edge): edge[0] for edge in edges}
    merged: nx.Graph[int] = nx.Graph()
    merged.add_nodes_from(range(graph.size))
    for component in nx.biconnected_component_edges(nx.Graph(edges)):
        tails = sorted({source[frozenset(edge)] for edge in component})
        nx.add_path(merged, tails)
    layer = np.empty(graph.size, dtype=np.int64)
    for i, together in enumerate(nx.connected_components(merged)):
        layer[list(together)] = i
    return merge_cycles(layer[units], pipeline_edges(task.workload))
