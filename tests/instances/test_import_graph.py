"""From recordings to graphs and layers: no torch needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest

from stagecut.instances.operator_graph import (
    ExecutedNode,
    Flow,
    KernelCall,
    OperatorGraph,
    Parameter,
    Read,
    Recording,
    TracedOperator,
    operator_graph,
)
from stagecut.instances.pytorch.operator_times import corrected
from stagecut.instances.to_workload import by_layer

KERNEL = KernelCall("op", 1.0, 8.0)


def step(name: str, reads: list[int], writes: list[int], **others: Any) -> ExecutedNode:
    given = {"modules": ("",), "kernels": (KERNEL,), "random": False, "saved": ()} | others
    read = tuple(Read(s, 0, 8.0) for s in reads)
    return ExecutedNode(name, reads=read, writes=tuple(writes), **given)


def recorded(
    *steps: ExecutedNode, parameters: tuple[int, ...] = (), buffers: tuple[int, ...] = ()
) -> Any:
    """A recording over ten storages, of which 0 is the input."""
    learned = {s: Parameter(f"p{s}", 2, 8.0, True) for s in parameters}
    last = steps[-1].writes[:1]
    return Recording(
        steps, (), (8.0,) * 10, learned, frozenset(buffers), (0,),
        tuple(Read(s, 0, 8.0) for s in last),
    )  # fmt: skip


def names(graph: OperatorGraph) -> list[str]:
    return [op.name for op in graph.operators]


def test_views_and_constants_fold() -> None:
    graph = operator_graph(
        recorded(
            step("table", [5], [6]),
            step("a", [0, 6], [1]),
            step("view", [1], [], kernels=()),
            step("noise", [], [7], random=True),
            step("b", [1, 7], [2]),
            buffers=(5,),
        ),
        training=False,
    )
    assert names(graph) == ["a", "noise", "b"]
    assert graph.operators[0].parts == ["a", "view"]
    assert graph.anywhere == ("table",)
    assert graph.edges() == [(0, 2), (1, 2)]
    assert graph.operators[0].constant_bytes == 8.0


def test_in_place_changes_keep_all_who_saw_the_tensor_together() -> None:
    graph = operator_graph(
        recorded(
            step("a", [0], [1]), step("early", [1], [2]), step("change", [1, 2], [1]),
            step("late", [1], [3]),
        ),
        training=False,
    )  # fmt: skip
    assert graph.colours == ((0, 1, 2),)
    assert (2, 3) in graph.edges()
    assert (0, 3) not in graph.edges()


def test_buffers_that_change_take_memory_once() -> None:
    inside = ("", "cache")
    graph = operator_graph(
        recorded(
            step("a", [0], [1]), step("change", [1, 5], [5], modules=inside),
            step("read", [1, 5], [2]), buffers=(5,),
        ),
        training=False,
    )  # fmt: skip
    assert [op.constant_bytes for op in graph.operators] == [0.0, 8.0, 0.0]
    assert [op.activation_bytes for op in graph.operators] == [8.0, 0.0, 8.0]


def test_weights_of_several_operators_are_named_with_who_reads_them() -> None:
    recording = recorded(step("a", [0, 4], [1]), step("b", [1, 4], [2]), parameters=(4,))
    graph = operator_graph(recording, training=False)
    (shared,) = graph.shared
    assert (shared.name, shared.readers, shared.deliverers) == ("p4", (0, 1), ())
    assert shared.weight_bytes == 8.0
    assert not graph.colours  # copies or one device: `ties` decides
    assert [op.weight_bytes for op in graph.operators] == [8.0, 0.0]


def test_counters_go_with_the_next_operator_of_their_module() -> None:
    graph = operator_graph(
        recorded(step("count", [5], [5]), step("norm", [0, 5], [1]), buffers=(5,)), training=False
    )
    assert names(graph) == ["norm"]
    assert graph.operators[0].parts == ["count", "norm"]


@pytest.mark.parametrize("seed", range(30))
def test_layers_never_wait_for_each_other_in_a_circle(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 60))
    operators = tuple(
        TracedOperator(f"o{v}", ("", f"m{rng.integers(4)}"), (KERNEL,)) for v in range(n)
    )
    flows = tuple(
        Flow(u, v, Read(u, 0, 1.0)) for v in range(n) for u in range(v) if rng.random() < 0.08
    )
    graph = OperatorGraph(operators, flows, (1.0,) * n, (), (), ())
    grouping = by_layer(graph, 1)
    quotient = nx.DiGraph((grouping.node[u], grouping.node[v]) for u, v in graph.edges())
    quotient.remove_edges_from(nx.selfloop_edges(quotient))
    assert nx.is_directed_acyclic_graph(quotient)
    assert len(set(grouping.names)) == len(grouping.names)
    for v, op in enumerate(operators):
        assert grouping.names[grouping.node[v]].split("#")[0] == op.modules[1]


def test_a_module_around_its_children_is_cut_where_it_must() -> None:
    paths = [("",), ("", "a"), ("", "a", "a.x"), ("", "a"), ("",)]
    operators = tuple(TracedOperator(f"o{v}", p, (KERNEL,)) for v, p in enumerate(paths))
    flows = tuple(Flow(v, v + 1, Read(v, 0, 1.0)) for v in range(4))
    graph = OperatorGraph(operators, flows, (1.0,) * 5, (), (), ())
    assert by_layer(graph, 1).names == ("model", "a", "model#2")
    assert by_layer(graph, 2).names == ("model", "a", "a.x", "a#2", "model#2")
    free = replace(graph, flows=flows[:1])
    assert by_layer(free, 1).names == ("model", "a")


def test_parts_are_corrected_to_the_whole() -> None:
    ms, kernels = np.array([1.0, 3.0]), np.array([20.0, 20.0])
    nothing, _, text = corrected(np.zeros(2), kernels, 4.2)
    assert nothing.tolist() == [0.0, 0.0]
    assert "corrected" not in text
    small, factor, text = corrected(ms, kernels, 4.5)
    assert small.sum() == pytest.approx(4.5)
    assert factor == pytest.approx(1.0)
    assert small[1] - small[0] == pytest.approx(2.0)  # an overhead, no factor
    large, factor, text = corrected(ms, kernels, 9.6)
    assert large.sum() == pytest.approx(9.6)
    assert "20 µs per kernel and a factor of 2" in text
    assert factor == pytest.approx(2.0)
    less, factor, text = corrected(ms, kernels, 2.0)
    assert (less.tolist(), factor) == ([0.5, 1.5], 0.5)
