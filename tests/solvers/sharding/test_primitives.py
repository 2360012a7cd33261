"""Conversions by the cheapest of several collectives: round by round, by brute force, and flips."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute_sharding import least_cost, random_problem, random_program

from stagecut import (
    DeviceMesh,
    InputError,
    Limits,
    Link,
    Sharding,
    check_bound,
    load_plan,
    save,
    solve,
    verify,
)
from stagecut.commands.common.pose import parse_mesh
from stagecut.formulations.sharding.conversions import conversions
from stagecut.instances import PrimitiveLink, ShardingObjective, Tensor
from stagecut.instances.common.choices import Primitive
from stagecut.instances.model.tensor_program import parse_axis
from stagecut.runtime.verify.sharding import path

LIMITS = Limits(seconds=120, nodes=5000)
LINK = Link(0.5, 16.0)


def rounds(primitive: str, algorithm: str, p: int, size: float) -> list[float]:
    """Bytes that are passed on in each round, one after the other."""
    doubled = [2.0**k for k in range(20) if 2**k < p]
    halves = [min(one, p - one) * size / p for one in doubled]
    match primitive, algorithm:
        case "all-to-all", _:
            return [size / p / p] * (p - 1)
        case "all-reduce", "ring":
            return [size / p] * (2 * (p - 1))
        case "all-reduce", _:
            return [size / len(doubled)] * (2 * len(doubled))
        case (("reduce" | "broadcast"), "ring"):
            return [size / (p - 1)] * (p - 1)
        case (("reduce" | "broadcast"), _):
            return [size] * len(doubled)
        case _, "ring":
            return [size / p] * (p - 1)
    return halves


def random_primitives(rng: np.random.Generator, axes: int) -> tuple[PrimitiveLink, ...]:
    """Links of some collectives along some axes."""
    found = []
    for axis, name in itertools.product(range(axes), Primitive):
        if rng.random() < 0.7:
            link = Link(float(rng.choice([0.0, 0.1, 2.0])), float(rng.choice([4, 30, 200])))
            tree = name is not Primitive.ALL_TO_ALL and rng.random() < 0.5
            found.append(PrimitiveLink(name, link, "tree" if tree else "ring", axis))
    return tuple(found)


#: Collectives between properties, those that send nothing as none.
STEPS = {
    ("S0", "S1"): "all-to-all", ("S1", "S0"): "all-to-all",
    ("S0", "B"): "all-gather", ("S1", "B"): "all-gather", ("S0", "I"): "gather",
    ("S1", "I"): "gather", ("S0", "P"): "", ("S1", "P"): "",
    ("P", "S0"): "reduce-scatter", ("P", "S1"): "reduce-scatter", ("P", "B"): "all-reduce",
    ("P", "I"): "reduce", ("I", "B"): "broadcast", ("I", "S0"): "scatter", ("I", "S1"): "scatter",
    ("I", "P"): "", ("B", "S0"): "", ("B", "S1"): "", ("B", "P"): "", ("B", "I"): "",
}  # fmt: skip


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
def test_a_conversion_is_the_cheapest_of_all_sequences(p: int) -> None:
    rng = np.random.default_rng(p)
    tensor = Tensor("t", (120, 240))
    flipped = set()
    for _ in range(20):
        mesh = DeviceMesh((p,), (LINK,), random_primitives(rng, 1))
        takes = {}
        for pair, name in STEPS.items():
            takes[pair] = 0.0
            if name:
                own = mesh.priced(Primitive(name), 0)
                each = rounds(name, own.algorithm, p, tensor.size_bytes)
                takes[pair] = math.fsum(
                    own.link.latency_s + size / own.link.bytes_per_s for size in each
                )
        known = conversions(tensor.shape, tensor.size_bytes, mesh, ShardingObjective.TIME, 1.0)
        for before, after in itertools.permutations(("S0", "S1", "B", "P"), 2):
            least = min(
                sum(takes.get(step, math.inf) for step in itertools.pairwise((before, *by, after)))
                for count in range(4)
                for by in itertools.product(("S0", "S1", "B", "P", "I"), repeat=count)
            )
            steps = path(tensor, (before,), (after,), Sharding(mesh))
            assert sum(step.seconds for step in steps) == pytest.approx(least, abs=1e-9)
            at = [known.number[(parse_axis(one),)] for one in (before, after)]
            assert known.cost[at[0], at[1]] == pytest.approx(least, abs=1e-9)
            flipped.add((before, after, tuple(step.collective for step in steps)))
    ways = {by for before, after, by in flipped if (before, after) == ("S0", "B")}
    assert {("all-gather",), ("gather", "broadcast")} <= ways


def test_the_numbers_decide_which_collectives_convert() -> None:
    tensor = Tensor("t", (120, 240))

    def by(before: str, after: str, *slow: str, p: int = 4) -> tuple[str, ...]:
        own = tuple(PrimitiveLink(name, Link(1e6, 16.0)) for name in slow)
        problem = Sharding(DeviceMesh((p,), (LINK,), own))
        return tuple(step.collective for step in path(tensor, (before,), (after,), problem))

    assert by("S0", "B") == by("S0", "B", "gather") == ("all-gather",)
    assert by("S0", "B", "all-gather") == ("pad", "all-reduce")
    assert by("S0", "B", "all-gather", "all-reduce") == ("gather", "broadcast")
    assert by("P", "S0") == by("P", "S0", "reduce") == ("reduce-scatter",)
    assert by("P", "S0", "reduce-scatter") == ("all-reduce", "slice")
    assert by("P", "S0", "reduce-scatter", "all-reduce") == ("reduce", "scatter")
    assert by("S0", "S1") == ("all-to-all",)
    assert by("S0", "S1", "all-to-all", "reduce-scatter") == ("all-gather", "slice")
    assert by("P", "B", "all-reduce") == ("reduce-scatter", "all-gather")
    assert by("P", "B", "all-reduce", "reduce-scatter") == ("reduce", "broadcast")


def test_bytes_go_through_one_device_where_a_split_is_given_up_and_taken_again() -> None:
    def by(shape: tuple[int, int], objective: str, *own: PrimitiveLink) -> tuple[str, ...]:
        problem = Sharding(DeviceMesh(shape, (LINK, LINK), own), ShardingObjective(objective))
        steps = path(Tensor("t", (12, 12)), ("S0", "S0"), ("S1", "S0"), problem)
        return tuple(step.collective for step in steps)

    same = PrimitiveLink("gather", LINK)
    assert by((2, 3), "distpar", same) == ("gather", "all-to-all", "scatter")
    assert "gather" not in by((2, 3), "distpar")
    for shape in ((2, 2), (3, 2)):
        assert by(shape, "distpar", same) == by(shape, "distpar")
    for shape in ((2, 3), (2, 2), (3, 2)):
        assert by(shape, "time", same) == by(shape, "time")


def test_methods_find_the_optimum_with_links_of_collectives(tmp_path: Path) -> None:
    compared, another = 0, 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 31])
        workload, plain = random_program(rng), random_problem(rng)
        if plain.objective == "distpar":
            continue
        mesh = plain.mesh
        own = random_primitives(rng, len(mesh.shape))
        problem = replace(plain, mesh=DeviceMesh(mesh.shape, mesh.links, own))
        optimum = least_cost(workload, problem)
        if optimum is None:
            continue
        compared += 1
        for method in ("elimination", "milp", "messages"):
            result = solve(workload, problem=problem, method=method, limits=LIMITS, workers=1)
            assert result.plan is not None
            assert result.bound <= optimum * (1 + 1e-6) + 1e-9
            assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-9), (seed, method)
            verify(workload, result.plan)
            if method == "elimination":
                assert check_bound(workload, result.plan).target <= optimum * (1 + 1e-9)
                save(result.plan, tmp_path / "plan.json", workload)
                assert load_plan(tmp_path / "plan.json", workload).problem == problem
        best = solve(workload, problem=plain, method="elimination", limits=LIMITS).objective
        another += best != result.objective
    assert compared > 10
    assert another > 2


def test_meshes_as_they_are_typed() -> None:
    workload = random_program(np.random.default_rng(0))
    text = "2x4@20us:25GB/s,10us:300GB/s+gather=5us:20GB/s+broadcast=tree:1e+1us:2GB/s"
    mesh = parse_mesh(text, workload)
    assert [(one.primitive, one.algorithm, one.axis) for one in mesh.primitives] == [
        ("gather", "ring", 1), ("broadcast", "tree", 1),
    ]  # fmt: skip
    assert mesh.priced(Primitive.BROADCAST, 1).link == Link(10 * 1e-6, 2e9)
    assert mesh.priced(Primitive.BROADCAST, 0).link == Link(20 * 1e-6, 25e9)
    for wrong, said in (
        ("4@1us:1GB/s+gather", "'gather' is no collective"),
        ("4@1us:1GB/s+send=1us:1GB/s", '--mesh: "send" is not one of all-gather'),
        ("4@1us:1GB/s+gather=star:1us:1GB/s", '--mesh: "star" is not one of ring, tree'),
        ("4@1us:1GB/s+all-to-all=tree:1us:1GB/s", "an all-to-all has no tree"),
        ("4@1us:1GB/s+gather=1us:1GB/s+gather=1us:1GB/s", "gather is given twice along axis 0"),
    ):
        with pytest.raises(InputError, match=said):
            parse_mesh(wrong, workload)
    with pytest.raises(InputError, match="the mesh has no axis 1"):
        DeviceMesh((2,), (LINK,), (PrimitiveLink("gather", LINK, axis=1),))
