"""To networkx and pandas and back, prices over links, and what the nouns refuse."""

from __future__ import annotations

import math
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import sample_files
from cases import random_case

from stagecut import (
    Cluster,
    DeviceKind,
    InputError,
    Link,
    Plan,
    Throughput,
    Workload,
    accelerators_and_cpus,
)
from stagecut.instances import Placement, price
from stagecut.instances.formats.conversions import from_networkx, from_pandas
from stagecut.runtime import evaluate


@pytest.mark.parametrize("seed", range(30))
def test_workloads_survive_pandas_and_networkx(seed: int) -> None:
    workload = random_case(seed)[0] if seed else sample_files.workload()
    unit = workload.time_unit
    tables = workload.to_pandas(), workload.edges_to_pandas()
    by_pandas = from_pandas(*tables, name=workload.name, time_unit=unit)
    by_networkx = from_networkx(workload.to_networkx())
    for back in (by_pandas, by_networkx):
        assert back.fingerprint == workload.fingerprint
        assert back.names == workload.names
        assert back.name == workload.name
        pd.testing.assert_frame_equal(back.to_pandas(), workload.to_pandas())


def test_the_graph_is_what_networkx_people_expect() -> None:
    workload = sample_files.workload()
    graph = workload.to_networkx()
    assert nx.is_directed_acyclic_graph(graph)
    assert set(graph) == set(workload.ids)
    assert set(graph.edges) == {("in", 7), ("in", "ä→b"), (7, 2**70), ("ä→b", 2**70)}
    assert graph.nodes[7]["time_accelerator"] == 1 / 3
    assert graph.nodes["in"]["colour"] == "shared"
    assert graph.graph["time_unit"] == "ms"


def test_a_plain_table_is_enough() -> None:
    nodes = pd.DataFrame({"time_gpu": [1, 2, 3], "output_bytes": [4, 5, 6], "colour": [1, None, 1]})
    edges = pd.DataFrame({"source": [0, 0], "target": [1, 2]})
    workload = from_pandas(nodes, edges, name="plain", time_unit="ms")
    assert workload.ids == (0, 1, 2)
    assert workload.colours.tolist() == [0, -1, 0]
    assert workload.colour_labels == (1,)
    assert workload.memory_bytes.tolist() == [0, 0, 0]


def test_tables_and_graphs_that_lack_something() -> None:
    nodes = sample_files.workload().to_pandas()
    edges = sample_files.workload().edges_to_pandas()
    cases: list[tuple[Any, Any, str]] = [
        (nodes, edges.drop(columns="target"), 'x: the table of edges has no column "target"'),
        (nodes, edges.replace("in", "out"), 'x: edges row 0: unknown node "out"'),
        (nodes.drop(columns=["time_accelerator", "time_cpu"]), edges, "x: no times"),
        (nodes.drop(columns=["transfer", "output_bytes"]), edges, "x: neither transfer times"),
        (nodes.assign(time_cpu="slow"), edges, 'x: column "time_cpu" must hold numbers'),
        (nodes.assign(colour=1.5), edges, "x: colour 1.5 is neither"),
        (nodes.assign(backward="yes"), edges, "x: backward: it must be a list of true, false"),
    ]
    for table, pairs, message in cases:
        with pytest.raises(InputError, match=message):
            from_pandas(table, pairs, name="x")
    graph = sample_files.workload().to_networkx()
    del graph.nodes[7]["time_cpu"]
    with pytest.raises(InputError, match='sämple: node 7 has no attribute "time_cpu"'):
        from_networkx(graph)
    with pytest.raises(InputError, match="undirected"):
        from_networkx(nx.Graph([(1, 2)]))  # type: ignore[arg-type]


def test_bytes_over_links_are_priced_as_by_hand() -> None:
    workload = Workload(
        name="chain",
        ids=("a", "b", "c"),
        edges=np.array([(0, 1), (0, 2), (1, 2)]),
        times={"gpu": np.array([1.0, 2.0, 3.0]), "cpu": np.array([10.0, 20.0, 30.0])},
        memory_bytes=np.zeros(3),
        transfer=None,
        output_bytes=np.array([3e6, 0.0, 1e6]),
        time_unit="ms",
    )
    cluster = Cluster(
        (
            DeviceKind("near", 1, times="gpu", link=Link(1e-3, 1e9)),
            DeviceKind("far", 1, times="gpu", slowdown=2.0, link=Link(2e-3, 5e8)),
            DeviceKind("cpu", 1, host=True),
        )
    )
    costs = price(workload, cluster)
    # 1 ms + 3 MB / (1 GB/s) = 4 ms; nothing takes nothing; 2 ms + 3 MB / (0.5 GB/s) = 8 ms.
    assert costs.transfer[0].tolist() == pytest.approx([4.0, 0.0, 2.0])
    assert costs.transfer[1].tolist() == pytest.approx([8.0, 0.0, 4.0])
    assert costs.transfer[2].tolist() == [0.0, 0.0, 0.0]
    assert costs.compute[1].tolist() == [2.0, 4.0, 6.0]
    # a on near, b on far, c on the host: a leaves near (4) and enters far (8), c reads it there.
    report = evaluate(workload, cluster, Throughput(), Placement(np.array([0, 1, 2])))
    assert [device.load for device in report.devices] == pytest.approx([1 + 4, 4 + 8, 30])
    with pytest.raises(InputError, match="give device kind 'gpu' a link"):
        price(workload, Cluster((DeviceKind("gpu", 1),)))


GOOD: dict[str, Any] = {
    "name": "x",
    "ids": (1, 2),
    "edges": [(0, 1)],
    "times": {"cpu": [1.0, 2.0]},
    "memory_bytes": [0, 0],
    "transfer": [0.5, 0.5],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": ()}, "no nodes"),
        ({"ids": ([1], 2)}, "neither a whole number nor a text"),
        ({"ids": (1.0, 2)}, "ids: 1.0 is neither a whole number nor a text"),
        ({"ids": (True, 2)}, "ids: true is neither"),
        ({"ids": (1, np.int64(1))}, "node id 1 occurs twice"),
        ({"edges": [0, 1]}, "edges: its shape is"),
        ({"edges": [(0, 1, 1)]}, "edges: its shape is"),
        ({"edges": [(0, 0.5)]}, "edges: it must be a list of whole numbers"),
        ({"edges": [("a", "b")]}, "edges: it must be a list of whole numbers"),
        ({"edges": [(0, 2)]}, "an edge names a node beyond 0 to 1"),
        ({"edges": [(0, 1), (1, 0)]}, "the edges close a cycle: 1 → 2 → 1"),
        ({"times": {}}, "no times"),
        ({"times": {"cpu": [1.0]}}, "time on cpu has 1 values for 2 nodes"),
        ({"times": {"cpu": [1.0, None]}}, "time on cpu: it must be a list of numbers"),
        ({"times": {"cpu": [1.0, "x"]}}, "time on cpu: it must be a list of numbers"),
        ({"times": {"cpu": [[1.0], [2.0]]}}, "time on cpu: its shape is"),
        ({"times": {"cpu": 3.0}}, "time on cpu: it must be a list of numbers"),
        ({"memory_bytes": [0, math.inf]}, "node 2: memory_bytes is inf"),
        ({"transfer": [0, -1]}, "node 2: transfer is -1"),
        ({"backward": [0, 2]}, "backward: it must be a list of true, false, 0 or 1"),
        ({"colours": [0, 1], "colour_labels": ("a",)}, "colours must be"),
        ({"colours": [0.5, 1]}, "colours: it must be a list of whole numbers"),
        ({"colours": [-2, 0]}, "colours must be"),
        ({"names": ("a",)}, "names has 1 values"),
        ({"extra": {"transfer": [1, 2]}}, 'extra "transfer" is the name of a column'),
        ({"time_unit": "hour"}, 'unknown time unit "hour"'),
        ({"transfer": None}, "neither transfer times nor output bytes"),
    ],
)
def test_workloads_are_valid_from_birth(change: dict[str, Any], message: str) -> None:
    Workload(**GOOD)
    with pytest.raises(InputError, match=message):
        Workload(**{**GOOD, **change})


def test_workloads_own_their_arrays_and_speak_plain_python() -> None:
    given = np.array([0.5, 0.5])
    workload = Workload(**{**GOOD, "ids": np.array([3, 4]), "transfer": given})
    given[0] = 7.0
    assert workload.transfer is not None
    assert workload.transfer.tolist() == [0.5, 0.5]
    assert [type(node) for node in workload.ids] == [int, int]
    arrays = [workload.edges, workload.memory_bytes, workload.backward, workload.colours]
    for array in [*arrays, workload.transfer, *workload.times.values()]:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(TypeError):
        workload.times["gpu"] = given  # type: ignore[index]
    with pytest.raises(AttributeError):
        workload.name = "y"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster(()), "no devices"),
        (lambda: accelerators_and_cpus(0, 0), "no devices"),
        (lambda: accelerators_and_cpus(10**9), "at most 100000 are planned for"),
        (lambda: Cluster((1,)), "1 is not a DeviceKind"),  # type: ignore[arg-type]
        (lambda: DeviceKind("", 1), "has no name"),
        (lambda: DeviceKind("a", True), "a: count is true"),
        (lambda: DeviceKind("a", 1.0), "a: count is 1.0"),  # type: ignore[arg-type]
        (lambda: DeviceKind("a", 1, math.nan), "a: memory_bytes is NaN"),
        (lambda: DeviceKind("a", 1, "16GB"), 'a: memory_bytes is "16GB"'),  # type: ignore[arg-type]
        (lambda: DeviceKind("a", 1, slowdown=0), "a: slowdown is 0"),
        (lambda: Link(-1.0, 1.0), "latency_s is -1"),
        (lambda: Link(0.0, 0.0), "bytes_per_s is 0"),
    ],
)
def test_clusters_are_valid_from_birth(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_plans_name_devices_that_exist() -> None:
    plan = sample_files.plan()
    with pytest.raises(InputError, match="not one of the cluster's 0 to 4"):
        Plan(**{**vars(plan), "solution": Placement(np.array([0, 1, 2, 5]))})
    with pytest.raises(TypeError):
        plan.certificate["origin"] = "me"  # type: ignore[index]
    table = plan.to_pandas(sample_files.workload())
    assert table.loc["ä→b", "device_name"] == "cpu 0"
