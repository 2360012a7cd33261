"""Orders of units: topological, of two kinds, and with groups side by side."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stagecut import Throughput, Workload  # noqa: E402
from stagecut.formulations.task import pose  # noqa: E402
from stagecut.instances.common.arrays import Ints  # noqa: E402
from stagecut.instances.generate.graph_family import FAMILIES, family_graph  # noqa: E402
from stagecut.solvers.learned.environments import environment  # noqa: E402
from stagecut.solvers.learned.features import Observation  # noqa: E402
from stagecut.solvers.learned.groups import grouped_order, interleaved_order, random_order  # noqa: E402
from stagecut.solvers.learned.policy import draw_placements, new_policy  # noqa: E402

Order = Callable[[Observation, np.random.Generator], Ints]


def seen(workload: Workload) -> Observation:
    assert workload.cluster is not None
    return environment(pose(workload, workload.cluster, Throughput("contiguous"))).observation


def is_topological(of: Observation, order: Ints) -> bool:
    place = np.argsort(order)
    ahead = place[of.edges]
    one_way = {tuple(edge) for edge in of.edges.tolist()}
    loose = [tuple(reversed(edge)) not in one_way for edge in of.edges.tolist()]
    whole = sorted(order.tolist()) == list(range(of.graph.size))
    return whole and bool((ahead[loose, 0] < ahead[loose, 1]).all())


def runs(group: Ints, order: Ints) -> int:
    return 1 + int(np.count_nonzero(np.diff(group[order])))


@pytest.mark.parametrize("order", [random_order, interleaved_order])
@pytest.mark.parametrize("family", FAMILIES)
def test_orders_are_topological_and_differ(order: Order, family: str) -> None:
    of, rng = seen(family_graph(family, 3)), np.random.default_rng(0)
    drawn = [order(of, rng) for _ in range(5)]
    assert all(is_topological(of, each) for each in drawn)
    again = np.random.default_rng(0)
    assert (drawn[0] == order(of, again)).all()


def test_interleaved_orders_go_from_branch_to_branch_more_often() -> None:
    of, rng = seen(family_graph("branches", 3)), np.random.default_rng(0)
    edges = {tuple(edge) for edge in of.edges.tolist()}

    def jumps(order: Order) -> int:
        drawn = [order(of, rng).tolist() for _ in range(20)]
        return sum(step not in edges for o in drawn for step in pairwise(o))

    assert jumps(interleaved_order) > jumps(random_order)


def test_contiguous_groups_are_intervals_of_the_order_given() -> None:
    workload = family_graph("branches", 3)
    assert workload.cluster is not None
    of, rng = (
        environment(pose(workload, workload.cluster, Throughput("contiguous"))),
        np.random.default_rng(0),
    )
    order = interleaved_order(of.observation, rng)
    drawn = draw_placements(new_policy(0), of, np.full(6, 1.3), rng, order=order)
    assert all(runs(group, order) == len(np.unique(group)) for group in drawn.group)


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_are_put_side_by_side(family: str) -> None:
    of, rng = seen(family_graph(family, 3)), np.random.default_rng(0)
    group = np.zeros(of.graph.size, np.int64)
    for part, units in enumerate(np.array_split(interleaved_order(of, rng), 4)):
        group[units] = part
    kept = grouped_order(of, random_order(of, rng), group)
    assert is_topological(of, kept)
    assert runs(group, kept) == len(np.unique(group))


def test_groups_that_wait_for_each_other_change_nothing() -> None:
    of, rng = seen(family_graph("chain", 3)), np.random.default_rng(0)
    order = random_order(of, rng)
    assert (grouped_order(of, order, np.arange(of.graph.size) % 2) == order).all()
