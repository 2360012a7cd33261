"""Routed experts: products, copies and dispatched bytes against counting by hand."""

from __future__ import annotations

from itertools import combinations

import pytest

from stagecut.instances.costs.description import Experts
from stagecut.instances.costs.experts import (
    dispatched,
    distinct_groups,
    expert_products,
    permutation_bytes,
    routed_rows,
)
from stagecut.instances.costs.layout import Layout


@pytest.mark.parametrize(("experts", "top_k", "groups"), [(8, 2, 4), (12, 3, 4), (6, 4, 6)])
def test_groups_that_a_token_reaches(experts: int, top_k: int, groups: int) -> None:
    chosen = list(combinations(range(experts), top_k))
    size = experts // groups
    counted = sum(len({one // size for one in some}) for some in chosen) / len(chosen)
    assert distinct_groups(experts, top_k, groups) == pytest.approx(counted)


@pytest.mark.parametrize("dispatcher", ["all-to-all", "hierarchical"])
@pytest.mark.parametrize(("group", "domain"), [(8, 4), (8, 8), (4, 2), (6, 2)])
def test_bytes_sent_are_those_of_all_choices(dispatcher: str, group: int, domain: int) -> None:
    experts = Experts(2 * group, 3, 64)
    layout = Layout(data=group, expert=group, sequence=16, dispatcher=dispatcher)
    token = 16 * 10 * 2.0
    found = dispatched(experts, layout, 10 * 2.0, domain)
    inside = across = 0.0
    chosen = list(combinations(range(experts.experts), experts.top_k))
    for some in chosen:
        for source in range(group):  # a token is on any device
            places = [one // 2 for one in some]
            if dispatcher == "all-to-all":
                far = [place for place in places if place // domain != source // domain]
                across += len(far)
                inside += sum(place != source for place in places) - len(far)
            else:
                nodes = {place // domain for place in places}
                across += len(nodes - {source // domain})
                # It lands on the device of the sender's place in the node, and goes on from there.
                landing = {node * domain + source % domain for node in nodes}
                inside += len(set(places) - landing)
    count = len(chosen) * group
    assert found.network == pytest.approx(across / count * token)
    assert found.domain == pytest.approx(inside / count * token)


@pytest.mark.parametrize(("tensor", "expert", "expert_tensor"), [(1, 8, 1), (2, 4, 1), (2, 4, 2)])
def test_rows_of_all_devices_are_those_of_all_tokens(
    tensor: int, expert: int, expert_tensor: int
) -> None:
    experts, hidden = Experts(16, 4, 512), 256
    layout = Layout(
        tensor=tensor, data=8 // tensor, expert=expert, expert_tensor=expert_tensor, sequence=64,
        microbatch=2,
    )  # fmt: skip
    tokens = 8 // tensor * layout.tokens
    assert routed_rows(experts, layout) * 8 / expert_tensor == tokens * experts.top_k
    into, out = expert_products(experts, layout, hidden)
    operations = 2 * (into.count * into.m * into.n * into.k + out.count * out.m * out.n * out.k)
    assert operations * 8 == 6 * tokens * experts.top_k * hidden * experts.width


def test_dispatchers_that_order_rows_copy_half_and_capacity_drops() -> None:
    experts = Experts(16, 4, 512)
    layout = Layout(data=8, expert=8, sequence=64)
    own = Layout(data=8, expert=8, sequence=64, dispatcher="hierarchical")
    assert permutation_bytes(experts, layout, 512) == 2 * permutation_bytes(experts, own, 512)
    dropped = Layout(data=8, expert=8, sequence=64, expert_capacity=0.5)
    assert routed_rows(experts, dropped) == routed_rows(experts, layout) / 2
