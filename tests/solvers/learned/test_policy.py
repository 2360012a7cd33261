"""A policy: probabilities, masks, what it may not depend on, values against the verifier."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stagecut import (  # noqa: E402
    Cluster,
    DeviceKind,
    Latency,
    Limits,
    PipelineJob,
    Throughput,
    Workload,
    accelerators_and_cpus,
    load,
    solve,
)
from stagecut.formulations.task import pose  # noqa: E402
from stagecut.instances import Problem  # noqa: E402
from stagecut.instances.generate.graph_family import FAMILIES, family_graph  # noqa: E402
from stagecut.runtime import evaluate  # noqa: E402
from stagecut.solvers.learned.environments import PlacementEnvironment, environment  # noqa: E402
from stagecut.solvers.learned.groups import GroupRules, Partitions  # noqa: E402
from stagecut.solvers.learned.policy import (  # noqa: E402
    SampledPlacements,
    draw_placements,
    encode,
    log_probabilities,
    new_policy,
    one_thread,
    partition,
    partition_log_probabilities,
)
from stagecut.solvers.learned.train import (  # noqa: E402
    ELITE,
    FineTuning,
    Settings,
    new_training,
    targets,
    train_step,
)

PROBLEMS = [
    Throughput(),
    Throughput("contiguous"),
    Throughput("contiguous", overlap=True),
    Throughput(pipeline="gpipe"),
    PipelineJob(8),
    PipelineJob(8, schedule="gpipe"),
    Latency(),
    Latency(2),
]
#: Graphs with and without a backward pass.
TRAINS = next(w for w in (family_graph("residual", s) for s in range(9)) if w.backward.any())
FORWARD = next(w for w in (family_graph("branches", s) for s in range(9)) if not w.backward.any())
UNEQUAL = Cluster((DeviceKind("accelerator", 2), DeviceKind("slow", 2, times="cpu")))
#: Accelerators that have room for two thirds, and CPUs.
SMALL = Cluster(
    (
        DeviceKind("accelerator", 2, float(FORWARD.memory_bytes.sum()) / 3),
        DeviceKind("cpu", 1, host=True),
    )
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def graph_for(problem: Problem) -> Workload:
    return FORWARD if isinstance(problem, Latency) else TRAINS


def posed(
    problem: Problem, workload: Workload | None = None, cluster: Cluster | None = None
) -> PlacementEnvironment:
    workload = workload or graph_for(problem)
    devices = cluster or workload.cluster
    assert devices is not None
    return environment(pose(workload, devices, problem))


def drawn_from(of: PlacementEnvironment, seed: int = 0) -> SampledPlacements:
    rng = np.random.default_rng(seed)
    return draw_placements(new_policy(0), of, targets(of, 6, rng), rng, schedules=2)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("cluster", [None, UNEQUAL, SMALL], ids=["equal", "unequal", "small"])
def test_values_are_the_verifiers(problem: Problem, cluster: Cluster | None) -> None:
    workload, of = graph_for(problem), posed(problem, cluster=cluster)
    drawn = drawn_from(of)
    kept = 0
    for group, device, value in zip(drawn.group, drawn.device, drawn.values, strict=True):
        report = evaluate(
            workload, cluster or workload.cluster, problem, of.solution(group, device)
        )
        worst = float(of.observation.count.sum())
        if not report.violations:
            kept += 1
            assert value * of.unit == pytest.approx(report.objective)
        elif any("bytes" in str(said) for said in report.violations):
            assert value > worst
    assert kept or cluster is not UNEQUAL


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_recomputed_probabilities_are_those_drawn_with(problem: Problem) -> None:
    of = posed(problem, cluster=UNEQUAL)
    drawn = drawn_from(of)
    again, entropy = log_probabilities(new_policy(0), of, drawn)
    assert again.detach().numpy() == pytest.approx(drawn.log_probability, abs=1e-5)
    assert (entropy.detach().numpy() >= -1e-6).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_contiguous_samples_are_contiguous(family: str) -> None:
    workload = family_graph(family, 1)
    problem = Throughput("contiguous")
    of = posed(problem, workload)
    drawn = drawn_from(of)
    for group, device in zip(drawn.group, drawn.device, strict=True):
        report = evaluate(workload, workload.cluster, problem, of.solution(group, device))
        assert all("byte" in str(said) for said in report.violations)


def relabelled(workload: Workload, at: np.ndarray) -> Workload:
    """The workload with node v as node at[v]."""
    back = np.argsort(at)
    return Workload(
        name="another",
        ids=tuple(f"n{v}" for v in range(workload.n)),
        edges=at[workload.edges],
        times={kind: time[back] for kind, time in workload.times.items()},
        memory_bytes=workload.memory_bytes[back],
        transfer=None if workload.transfer is None else workload.transfer[back],
        backward=workload.backward[back],
        colours=workload.colours[back],
        cluster=workload.cluster,
    )


@pytest.mark.parametrize("problem", PROBLEMS[:2], ids=str)
def test_the_order_of_nodes_does_not_matter(problem: Problem) -> None:
    at = np.random.default_rng(0).permutation(TRAINS.n)
    one, other = posed(problem), posed(problem, relabelled(TRAINS, at))
    unit = np.zeros(one.observation.graph.size, np.int64)  # unit of `other` for each of `one`
    unit[one.observation.graph.unit_of] = other.observation.graph.unit_of[at]
    policy = new_policy(0)
    order = drawn_from(one).partition.item[0]
    group = drawn_from(one).group
    found = []
    for of, number in ((one, np.arange(len(unit))), (other, unit)):
        embedded = encode(policy["encoder"], of.observation)
        forced = np.zeros_like(group)
        forced[:, number] = group
        groups = Partitions(
            of.observation, of.rules[0], np.full((len(group), of.rules[0].groups), 1.3)
        )
        made = partition(policy["partitioner"], embedded, groups, number[order], forced)
        logs = partition_log_probabilities(policy["partitioner"], embedded, made)
        found.append(logs.detach().exp().numpy())
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_devices_of_a_kind_are_alike() -> None:
    """Names and places of kinds do not matter: fast ones first, or slow ones."""
    turned = Cluster(UNEQUAL.kinds[::-1])
    of, other = (posed(Throughput(), cluster=cluster) for cluster in (UNEQUAL, turned))
    one, two = drawn_from(of).schedule, drawn_from(other).schedule
    wanted = np.concatenate((one.features[0, 0, 2:], one.features[0, 0, :2]))
    assert two.features[0, 0] == pytest.approx(wanted, abs=1e-6)
    assert one.allowed[0, 0].tolist() == [True, False, True, False]


def test_masks_keep_contiguous_groups_in_order_and_use_all_that_must_be() -> None:
    of = posed(Throughput("contiguous"))
    size = of.observation.graph.size
    groups = Partitions(
        of.observation, GroupRules(size, contiguous=True, all_used=True), np.ones((3, size))
    )
    order = drawn_from(of).partition.item[0]
    embedded = encode(new_policy(0)["encoder"], of.observation)
    made = partition(
        new_policy(0)["partitioner"], embedded, groups, order, np.random.default_rng(0)
    )
    assert (made.chosen == np.arange(size)).all()


def test_training_improves_on_its_own_first_mean() -> None:
    of = posed(Throughput("contiguous"), family_graph("chain", 1))
    settings = Settings(schedules=1, learning_rate=3e-3)
    training = new_training(new_policy(0), settings, 0)
    means = [train_step(training, [of], settings).drawn.values.mean() for _ in range(40)]
    assert np.mean(means[-5:]) < 0.95 * np.mean(means[:5])


@pytest.mark.parametrize(
    "problem", [Throughput(), Throughput("contiguous"), PipelineJob(4)], ids=str
)
def test_fine_tuning_offers_what_it_draws(problem: Problem) -> None:
    result = solve(
        TRAINS,
        problem=problem,
        method="learned:fine-tune=1e6",
        limits=Limits(nodes=64, seconds=60),
    )
    assert result.plan is not None
    assert result.phases["fine-tune"] > 0
    assert result.bound <= result.plan.objective


def test_fine_tuning_makes_what_was_best_likelier() -> None:
    of, policy = posed(Throughput("contiguous")), new_policy(0)
    drawn = drawn_from(of)
    best = drawn.take(np.argsort(drawn.values, kind="stable")[:ELITE])
    before, _ = log_probabilities(policy, of, best)
    tuning = FineTuning(policy, of)
    for _ in range(5):
        tuning.learn_from(drawn)
    after, _ = log_probabilities(policy, of, best)
    assert after.sum() > before.sum()


@pytest.mark.parametrize("problem", [Throughput(), Throughput("contiguous"), Latency()], ids=str)
@pytest.mark.parametrize("learned", ["learned", "learned:fine-tune=1e6"])
def test_never_behind_greedy(problem: Problem, learned: str) -> None:
    workload, cluster = graph_for(problem), SMALL if isinstance(problem, Latency) else None
    greedy, found = (
        solve(workload, cluster, problem, method=method, limits=Limits(nodes=1)).objective
        for method in ("greedy", learned)
    )
    assert greedy is not None
    assert found is not None
    assert found <= greedy


@pytest.mark.parametrize("learned", ["learned", "learned:fine-tune=1e6"])
def test_never_behind_what_frameworks_do(learned: str) -> None:
    """On a graph whose modules have names, with one placement drawn."""
    found = {
        method: solve(
            load("bert-large-training"),
            accelerators_and_cpus(4),
            PipelineJob(8),
            method=method,
            limits=Limits(nodes=1),
        ).objective
        for method in (learned, "megatron", "block-dp", "deepspeed-uniform")
    }
    drawn = found.pop(learned)
    assert drawn is not None
    assert all(other is not None and drawn <= other for other in found.values())


def test_zero_shot_is_near_the_optimum_on_a_family_that_it_has_not_seen() -> None:
    ratios, problem = [], Throughput("contiguous")
    for seed in range(4):
        workload = family_graph("encoder-decoder", 10 + seed)
        best = solve(workload, problem=problem, method="dp").objective
        limits = Limits(nodes=256, seconds=120)
        found = solve(workload, problem=problem, method="learned", limits=limits).objective
        assert best is not None
        ratios.append(np.inf if found is None else found / best)
    assert np.median(ratios) < 1.5
