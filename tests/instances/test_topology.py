"""Topologies: generators, routing, files, nvidia-smi."""

from __future__ import annotations

import itertools
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from stagecut import InputError
from stagecut.instances.model.topology import Topology
from stagecut.instances.topologies import (
    load_topology,
    save_topology,
    topology,
    topology_from_networkx,
)

NAMES = [
    "ring:5",
    "mesh2d:3x4",
    "torus2d:3x4",
    "mesh3d:2x2x3",
    "torus3d:3x3x2",
    "fattree:4",
    "dragonfly:3x2x2",
    "islands:3x2",
    "random_blk_1:20",
    "random_blk_2:20",
    "uniform_dist:9@seed=4",
    "islands:3x2@routing=widest,exclude=0+5",
]


def irregular(seed: int) -> Topology:
    """A connected graph of devices and switches whose routes tie in hops and often in bandwidth."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 14))
    graph = nx.gnp_random_graph(size, float(rng.choice([0.2, 0.4])), seed=seed)
    for part in list(nx.connected_components(graph))[1:]:
        graph.add_edge(0, min(part))
    for a, b in graph.edges:
        graph.edges[a, b]["bytes_per_s"] = float(rng.choice([1, 2, 3]))
        graph.edges[a, b]["latency_s"] = float(rng.choice([0, 0.5, 1]))
    for v in graph:
        graph.nodes[v]["device"] = v in (0, size - 1) or bool(rng.random() < 0.6)
    return topology_from_networkx(graph)


@pytest.mark.parametrize("name", [*NAMES, "torus3d:2x3x5", "mesh2d:5x5@exclude=3", *range(40)])
def test_routes_are_shortest_widest_and_symmetric(name: str | int) -> None:
    found = irregular(name) if isinstance(name, int) else topology(name)
    graph = found.to_networkx()
    routes = found.routes
    assert (routes.latency_s == routes.latency_s.T).all()
    assert (routes.bytes_per_s == routes.bytes_per_s.T).all()
    for a, b in itertools.combinations(range(found.size), 2):
        path = routes.path(a, b)
        assert path == routes.path(b, a)[::-1]
        links = [graph.edges[hop] for hop in routes.hops(a, b)]
        assert routes.latency_s[a, b] == pytest.approx(sum(k["latency_s"] for k in links))
        assert routes.bytes_per_s[a, b] == min(k["bytes_per_s"] for k in links)
        if found.routing == "hops":
            shortest = list(nx.all_shortest_paths(graph, a, b))
            assert len(path) == len(shortest[0])
            widest = max(
                min(graph.edges[hop]["bytes_per_s"] for hop in itertools.pairwise(p))
                for p in shortest
            )
            assert routes.bytes_per_s[a, b] == widest


def test_widest_routes_are_bottleneck_optimal() -> None:
    found = topology("uniform_dist:8@routing=widest")
    graph = found.to_networkx()
    tree = nx.maximum_spanning_tree(graph, weight="bytes_per_s")
    for a, b in itertools.combinations(range(8), 2):
        path = nx.shortest_path(tree, a, b)
        widest = min(graph.edges[hop]["bytes_per_s"] for hop in itertools.pairwise(path))
        assert found.routes.bytes_per_s[a, b] == widest


@pytest.mark.parametrize(
    ("name", "devices", "links"),
    [
        ("mesh2d:4x8", 32, 52),
        ("torus2d:4x8", 32, 64),
        ("torus2d:2x4", 8, 12),  # around a side of two there is one link
        ("torus3d:4x4x4", 64, 192),
        ("ring:8", 8, 8),
        ("fattree:4", 16, 48),
        ("islands:4x8", 32, 36),
        ("uniform_dist:16", 16, 120),
    ],
)
def test_sizes(name: str, devices: int, links: int) -> None:
    found = topology(name)
    assert (found.size, len(found.links)) == (devices, links)


def test_seeds_are_kept() -> None:
    one, two = topology("random_blk_2:30@seed=1"), topology("random_blk_2:30@seed=1")
    assert one.fingerprint == two.fingerprint != topology("random_blk_2:30@seed=2").fingerprint


@pytest.mark.parametrize("name", NAMES)
def test_file_and_graph_round_trip(name: str, tmp_path: Path) -> None:
    found = topology(name)
    save_topology(found, tmp_path / "t.json")
    assert load_topology(tmp_path / "t.json").fingerprint == found.fingerprint
    assert topology(str(tmp_path / "t.json")).fingerprint == found.fingerprint
    back = topology_from_networkx(found.to_networkx())
    assert back.devices == found.devices
    assert back.excluded == found.excluded
    assert (back.routes.latency_s == found.routes.latency_s).all()


SMI = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity
GPU0\t X \tNV4\tSYS\tSYS\tPIX\t0-15
GPU1\tNV4\t X \tSYS\tSYS\tPHB\t0-15
GPU2\tSYS\tSYS\t X \tNV4\tSYS\t16-31
GPU3\tSYS\tSYS\tNV4\t X \tSYS\t16-31
mlx5_0\tPIX\tPHB\tSYS\tSYS\t X

Legend:
  X    = Self
"""


def test_nvidia(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(SMI)
    found = topology(f"nvidia:{path}")
    assert found.devices == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert found.island.tolist() == [0, 0, 1, 1]
    assert found.routes.bytes_per_s[0, 1] == 100e9
    assert found.routes.bytes_per_s[1, 2] == 10e9


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mesh", "name one such as"),
        ("mesh2d:4", "takes 2 numbers"),
        ("mesh2d:4xx", "not a whole number"),
        ("mesh2d:0x4", "below 1"),
        ("uniform_dist:8@sed=1", "unknown key"),
        ("ring:8@seed=1", "seed for random"),
        ("uniform_dist:8@seed=a", "not a whole number"),
        ("ring:5@routing=fast", "is not one of hops, widest"),
        ("ring:5@exclude=7", "beyond 0 to 4"),
        ("fattree:3", "even number of ports"),
        ("nothing.json", "no such file"),
    ],
)
def test_wrong_names(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        topology(name)


def _made(**changes: object) -> Topology:
    values: dict[str, object] = {
        "name": "t",
        "devices": ("a", "b"),
        "links": np.array([[0, 1]]),
        "latency_s": np.zeros(1),
        "bytes_per_s": np.ones(1),
    }
    return Topology(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"devices": ()}, "no devices"),
        ({"devices": ("a", "a")}, "device a occurs twice"),
        ({"links": np.array([[0, 2]])}, "nodes run 0 to 1"),
        ({"links": np.array([[1, 1]])}, "to itself"),
        ({"bytes_per_s": np.zeros(1)}, "above 0"),
        ({"latency_s": np.array([-1.0])}, "≥ 0"),
        ({"latency_s": np.zeros(2)}, "differ in length"),
        ({"shape": (3,)}, "does not have 2 devices"),
        ({"island": np.array([1])}, "island"),
    ],
)
def test_wrong_topologies(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        _made(**changes)


def test_no_route() -> None:
    with pytest.raises(InputError, match="no route from a to b"):
        _ = _made(
            links=np.zeros((0, 2), np.int64), latency_s=np.zeros(0), bytes_per_s=np.zeros(0)
        ).routes


def test_a_device_without_links_can_be_excluded() -> None:
    place = _made(devices=("a", "b", "c"))
    with pytest.raises(
        InputError, match="from a to c; add a link between them, or exclude device 2"
    ):
        _ = place.routes
    assert place.without([2]).routes.bytes_per_s[0, 1] == 1.0


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_of_parallel_links_the_best_is_kept(order: list[int]) -> None:
    place = _made(
        links=np.array([[0, 1], [1, 0], [0, 1]]),
        latency_s=np.array([0.0, 1.0, 2.0])[order],
        bytes_per_s=np.array([1.0, 5.0, 5.0])[order],
    )
    for found in (place, topology_from_networkx(place.to_networkx())):
        assert found.routes.bytes_per_s[0, 1] == 5.0
        assert found.routes.latency_s[0, 1] == 1.0


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (nx.DiGraph([(0, 1, {"bytes_per_s": 1e9})]), "to_undirected"),
        (nx.Graph([(0, 1)]), "has no bytes_per_s"),
        (nx.Graph([(0, 1, {"bytes_per_s": "fast"})]), "must be a number"),
        (nx.Graph([(0, 1, {"bytes_per_s": 1e9, "latency_s": None})]), "must be a number"),
    ],
)
def test_wrong_graphs(graph: nx.Graph[int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        topology_from_networkx(graph)


def test_any_graph() -> None:
    graph = nx.Graph(name="mine")
    graph.add_node("switch", device=False)
    for k in range(4):
        graph.add_node(f"gpu {k}", island=k // 2)
        graph.add_edge("switch", f"gpu {k}", bytes_per_s=25e9, latency_s=5e-6)
    graph.add_edge("gpu 0", "gpu 1", bytes_per_s=100e9)
    found = topology_from_networkx(graph)
    assert found.devices == ("gpu 0", "gpu 1", "gpu 2", "gpu 3")
    assert found.switches == 1
    assert found.routes.bytes_per_s[0, 1] == 100e9
    assert found.routes.latency_s[0, 2] == pytest.approx(10e-6)
    assert found.without([2]).usable.tolist() == [0, 1, 3]
