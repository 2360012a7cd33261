"""Modules read from the names of nodes: where every node belongs, and what has no modules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from stagecut import PipelineJob, Workload, accelerators_and_cpus, load
from stagecut.formulations.job.line import line
from stagecut.formulations.job.modules import Modules, block_of, modules
from stagecut.formulations.task import pose

Edges = Sequence[tuple[str, str]]


def net(
    names: Sequence[str],
    edges: Edges,
    *,
    trains: bool = False,
    tied: Sequence[str] = (),
    order: Sequence[int] | None = None,
) -> Workload:
    """Nodes of these names, with a mirrored backward pass if it trains, in any order."""
    called = [*names, *(f"{name}.backward" for name in names if trains)]
    pairs = [*edges]
    if trains:
        pairs += [(f"{v}.backward", f"{u}.backward") for u, v in edges]
        pairs += [(name, f"{name}.backward") for name in names]
    called = called if order is None else [called[i] for i in order]
    index = {name: v for v, name in enumerate(called)}
    n = len(called)
    return Workload(
        name="net",
        ids=tuple(f"id {name}" for name in called),
        edges=np.array([(index[u], index[v]) for u, v in pairs]).reshape(-1, 2),
        times={"accelerator": np.ones(n)},
        memory_bytes=np.ones(n),
        transfer=np.zeros(n),
        backward=np.array([name.endswith(".backward") for name in called]),
        colours=np.array([0 if name in tied else -1 for name in called]),
        names=tuple(called),
    )


def chained(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each node feeds the next."""
    return list(itertools.pairwise(names))


def found_in(workload: Workload, least: int = 1) -> Modules | None:
    """The modules of a workload."""
    task = pose(workload, accelerators_and_cpus(2), PipelineJob(4))
    return modules(workload, line(task), least)


def members(workload: Workload, least: int = 1) -> dict[str, set[str]]:
    """The names of the nodes of each module."""
    task = pose(workload, accelerators_and_cpus(2), PipelineJob(4))
    statement = line(task)
    found = modules(workload, statement, least)
    assert found is not None
    of = found.module_of[statement.graph.unit_of]
    return {
        name: {workload.names[v] for v in np.flatnonzero(of == m)}
        for m, name in enumerate(found.names)
    }


GPT = ["embed", "layers.0.attn", "layers.0.mlp", "scale", "layers.1.attn", "layers.1.mlp", "norm",
       "head.linear", "loss"]  # fmt: skip


@pytest.mark.parametrize("trains", [False, True])
def test_every_node_belongs_somewhere(trains: bool) -> None:
    workload = net(GPT, chained(GPT), trains=trains)
    found = found_in(workload)
    assert found is not None
    assert found.names == ("embed", "layers.0", "layers.1", "norm", "head", "loss")
    assert (found.inputs, found.blocks, found.outputs) == (1, 2, 3)
    assert found.compute.tolist() == [(1 + trains) * size for size in (1, 3, 2, 1, 1, 1)]
    of = members(workload)
    assert {"layers.0.attn", "layers.0.mlp", "scale"} <= of["layers.0"]
    for name, nodes in of.items():
        forward = {node.removesuffix(".backward") for node in nodes}
        assert len(nodes) == (1 + trains) * len(forward), name  # backward nodes with their own


def test_the_order_of_nodes_does_not_matter() -> None:
    usual = members(net(GPT, chained(GPT), trains=True))
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(2 * len(GPT)).tolist()
        assert members(net(GPT, chained(GPT), trains=True, order=order)) == usual


def test_blocks_are_in_pipeline_order_whatever_their_names() -> None:
    names = ["encoder.9.mlp", "encoder.10.mlp", "decoder.0.mlp", "decoder.1.mlp"]
    assert list(members(net(names, chained(names)))) == [
        "encoder.9", "encoder.10", "decoder.0", "decoder.1"
    ]  # fmt: skip


def test_what_a_later_block_alone_needs_belongs_to_it() -> None:
    names = ["embed", "layers.0.mlp", "layers.1.mlp"]
    workload = net([*names, "late.embed"], [*chained(names), ("late.embed", "layers.1.mlp")])
    assert members(workload)["layers.1"] == {"layers.1.mlp", "late.embed"}


def test_few_blocks_are_divided_by_the_numbers_that_follow() -> None:
    names = ["stem", *(f"layers.{i}.blocks.{j}.mlp" for i in range(2) for j in range(3))]
    assert len(members(net(names, chained(names)), 2)) == 3
    assert len(members(net(names, chained(names)), 4)) == 7
    assert len(members(net(names, chained(names)), 9)) == 3  # no depth has so many


def test_experts_beside_each_other_stay_in_their_block() -> None:
    names = [f"layers.0.{part}" for part in ("router", "expert.0", "expert.1", "sum")]
    edges = [(names[0], names[1]), (names[0], names[2]), (names[1], names[3]), (names[2], names[3])]
    assert list(members(net(names, edges), 3)) == ["layers.0"]


def test_blocks_that_wait_for_each_other_are_one() -> None:
    names = ["layers.0.a", "layers.1.a", "layers.0.b", "layers.2.a"]
    assert list(members(net(names, chained(names)))) == ["layers.0", "layers.2"]


def test_a_colour_at_both_ends_joins_all_between() -> None:
    workload = net(GPT, chained(GPT), tied=["embed", "head.linear"])
    found = found_in(workload)
    assert found is not None
    assert found.blocks == 1


@pytest.mark.parametrize("names", [["0", "1", "2"], ["linear_1", "linear_2"], ["a.b", "a.c"]])
def test_names_that_number_no_modules(names: list[str]) -> None:
    assert found_in(net(names, chained(names), trains=True)) is None


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("layer1.0.conv1", "layer1.0"),
        ("encoder.layers.encoder_layer_3.mlp.0", "encoder.layers.encoder_layer_3"),
        ("features.3", "features.3"),
        ("conv1", ""),
        ("17", ""),
        ("linear_3", ""),
        ("up.0.enlarge", "up.0"),
    ],
)
def test_the_block_of_a_name(name: str, block: str) -> None:
    assert block_of(name) == block


def test_a_shipped_model() -> None:
    found = found_in(load("llama3-8b-training"))
    assert found is not None
    assert found.blocks == 32
    assert (found.names[0], found.names[1], found.names[-2:]) == (
        "embedding", "block.0", ("head", "loss")
    )  # fmt: skip
    assert found.parameters.sum() == pytest.approx(8.03e9, rel=1e-3)
