"""Block counts: their likelihood by definition, and annealing that keeps them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from brute_mapping import stages_of

from stagecut.formulations.mapping.bound import stage_lower_bounds
from stagecut.formulations.mapping.costs import (
    MappingCosts,
    find_blocks,
    mapping_costs,
    stage_times,
)
from stagecut.instances import DeviceMapping, stage_costs, topology
from stagecut.instances.common.arrays import Floats, Ints
from stagecut.solvers.mapping.annealing.anneal_kernel import anneal
from stagecut.solvers.mapping.annealing.costs import (
    best_routes,
    sampled_splits,
    violation_left,
    violations,
)
from stagecut.solvers.mapping.annealing.count_model import (
    admitted_nll,
    choose_counts,
    initial_counts,
    most_likely_counts,
    new_count_model,
    sample_placement,
    sample_routes,
    set_counts,
    update_weights,
)
from stagecut.solvers.mapping.parameters import MAX_EDGE_NLL


def case(seed: int, text: str, stages: int, replicas: int) -> tuple[MappingCosts, Ints]:
    """Costs of a mapping in mode both, and the blocks."""
    workload = stages_of(np.random.default_rng(seed), stages, free=False)
    text += f"@seed={seed}" if text.startswith("random") else ""
    problem = DeviceMapping(
        topology(text),
        stages,
        replicas,
        "both",
        gradients=False,
        collective="ring",
    )
    costs = mapping_costs(stage_costs(workload, np.arange(stages), stages), problem)
    return costs, find_blocks(costs)


def nll_of(counts: Ints, edge_nll: Floats, penalties: Floats, replicas: int) -> float:
    """The sum over edges, by definition."""
    stages = counts.shape[1] - 1
    total = float((counts * penalties).sum())
    for s in range(stages):
        inside = sum(min(row[s], row[s + 1]) for row in counts) if s + 1 < stages else 0
        blocks = sum(row[s] > 0 for row in counts)
        between = blocks if blocks > 1 else 0
        edges = np.array([inside, replicas - inside, replicas - between, between])
        total += min(float(split @ edges) for split in edge_nll[s])
    return total


def all_counts(sizes: list[int], demand: list[int]) -> list[list[tuple[int, ...]]]:
    """Every matrix of whole numbers with these sums of rows and columns."""
    if not sizes:
        return [[]] if not any(demand) else []
    found = []
    for row in itertools.product(*(range(most + 1) for most in demand)):
        if sum(row) == sizes[0]:
            rest = [a - b for a, b in zip(demand, row, strict=True)]
            found += [[row, *others] for others in all_counts(sizes[1:], rest)]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_annealing_finds_the_likeliest_of_all_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages, replicas, spare = 3, 3, int(rng.integers(2))
    demand = [replicas] * stages + [spare]
    sizes = [4, 3, sum(demand) - 7]
    every = [np.array(one) for one in all_counts(sizes, demand)]
    edge_nll = rng.exponential(2.0, (stages, 4, 4))
    penalties = rng.exponential(0.3, every[0].shape) * (seed % 2)
    least = min(nll_of(one, edge_nll, penalties, replicas) for one in every)
    found = []
    for begin in rng.integers(len(every), size=10).tolist():
        counts, nll = most_likely_counts(every[begin], edge_nll, penalties, replicas, 20_000, begin)
        assert counts.sum(axis=1).tolist() == sizes
        assert counts.sum(axis=0).tolist() == demand
        assert nll == pytest.approx(nll_of(counts, edge_nll, penalties, replicas))
        found.append(nll)
    assert min(found) == pytest.approx(least)


def test_edge_nll_is_minus_log_of_the_share_of_admitted_pairs() -> None:
    costs, block = case(3, "random_blk_1:24", 3, 8)
    upper_bounds = np.quantile(costs.boundary_costs(0), [0.2, 0.9])
    messages, rings = np.tile(upper_bounds, (3, 1)), np.full((3, 2), np.inf)
    found = admitted_nll(costs, sample_routes(costs, block), messages, rings)
    apart = block[:, None] != block[None, :]
    for split in (0, 1):
        share = (costs.boundary_costs(0)[apart] <= upper_bounds[split]).mean()
        nll = -np.log(share) if share else MAX_EDGE_NLL
        assert found[0, split, 1] == pytest.approx(nll)
    assert (found[:, :, 2:] == 0).all()


def counts_of(block: Ints, slots: Ints) -> Ints:
    """How many devices of each block stand in each stage; shape (B, S)."""
    return np.array([np.bincount(block[row], minlength=block.max() + 1) for row in slots]).T


@pytest.mark.parametrize("exchange_rate", [0.0, 0.5])
@pytest.mark.parametrize(
    ("text", "stages", "replicas"),
    [
        ("random_blk_1:32", 4, 8),
        ("random_blk_2:30", 5, 5),
        ("islands:6x4", 3, 8),
        ("islands:3x4", 3, 4),
        ("random_blk_1:18", 8, 2),
        ("random_blk_1:17", 16, 1),
    ],
)
def test_annealing_keeps_counts_and_what_it_claims(
    text: str, stages: int, replicas: int, exchange_rate: float
) -> None:
    solved = 0
    for seed in range(4):
        costs, block = case(seed, text, stages, replicas)
        assert block.any()
        lower_bounds, rng = stage_lower_bounds(costs), np.random.default_rng(seed)
        model = new_count_model(costs, block)
        for target in (1.1, 1.5, 3.0):
            target *= float((costs.base + lower_bounds.transfer + lower_bounds.allreduce).max())
            choose_counts(model, costs, lower_bounds, target, 5_000, rng)
            state = sample_placement(model, costs, rng)
            before = counts_of(block, state.slots())
            assert (before == model.counts[:, :-1]).all()
            upper_bounds = sampled_splits(costs, lower_bounds, target)
            cost = violations(
                costs,
                best_routes(costs),
                block,
                upper_bounds,
                target,
                keeps_counts=True,
                exchange_rate=exchange_rate,
            )
            anneal(cost, state, 20_000, seed, 0.7, 0.2)
            left = violation_left(cost)
            slots, sends_to = state.slots(), state.sends_to[:-1]
            assert sorted(state.slot.tolist()) == list(range(costs.size))
            assert (np.sort(sends_to, axis=1) == np.arange(replicas)).all()
            after = counts_of(block, slots)
            set_counts(model, costs, state)
            assert (after == model.counts[:, :-1]).all()
            if exchange_rate:  # blocks of one size may have changed what they do
                assert sorted(map(tuple, after.tolist())) == sorted(map(tuple, before.tolist()))
            else:
                assert (after == before).all()
            if left == 0:
                solved += 1
                assert stage_times(costs, slots, sends_to).max() <= target * (1 + 1e-9)
            else:
                update_weights(model, costs, state, upper_bounds)
                assert model.weights.max() > 1
                assert model.penalties.max() > 0
    assert solved


def test_annealing_with_fixed_counts_repeats_itself() -> None:
    costs, block = case(1, "random_blk_1:32", 4, 8)
    lower_bounds = stage_lower_bounds(costs)
    found = []
    for _ in range(2):
        rng = np.random.default_rng(5)
        model = new_count_model(costs, block)
        target = 1.3 * float((costs.base + lower_bounds.transfer + lower_bounds.allreduce).max())
        choose_counts(model, costs, lower_bounds, target, 5_000, rng)
        state = sample_placement(model, costs, rng)
        upper_bounds = sampled_splits(costs, lower_bounds, target)
        order = best_routes(costs)
        cost = violations(costs, order, block, upper_bounds, target, keeps_counts=True)
        anneal(cost, state, 10_000, 0, 0.7, 0.2)
        found.append((state.slot.tolist(), state.sends_to.tolist()))
    assert found[0] == found[1]


def test_first_counts_put_whole_replicas_together() -> None:
    costs, block = case(0, "islands:4x4", 4, 4)
    assert (initial_counts(costs, block)[:, :-1] == 1).all()
    assert (sampled_splits(costs, stage_lower_bounds(costs), 1.0)[0].shape) == (4, 24)
