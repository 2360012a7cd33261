"""The simulator against the verifier, against plain recomputation, and on cases done by hand."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cases import random_case
from conformance import Task, task
from pipelines import plan_of, random_chain, random_plan

import stagecut
from stagecut import InputError, Link, Plan, Throughput
from stagecut.instances import (
    Latency,
    PipelinePlacement,
    Placement,
    Solution,
    Stage,
    StagePlacement,
    price,
)
from stagecut.instances.model.contiguity import representatives
from stagecut.instances.model.solution import in_stages
from stagecut.runtime.schedules import SCHEDULES, Kind, make_schedule
from stagecut.runtime.schedules.actions import Action
from stagecut.runtime.simulate.network import HostMemory, Links, point_to_point, shared
from stagecut.runtime.simulate.plan_stages import stages_of, stages_of_calls
from stagecut.runtime.simulate.simulator import simulate, simulate_stages
from stagecut.runtime.simulate.stages import chain

TRAINING = [name for name in SCHEDULES if name not in ("single", "inference")]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_the_steady_state_is_the_max_load(seed: int, overlap: bool) -> None:
    found = random_plan(seed, overlap, max_nodes=12, max_accelerators=4)
    if found is None:
        return
    workload, plan = found
    for name in ["pipedream", "2bw"] + ["inference"] * (not workload.backward.any()):
        run = simulate(workload, plan, name)
        assert run.time_per_sample == pytest.approx(plan.objective, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        *("bert24_inference", "bert24_training", "gnmt_inference", "gnmt_training"),
        *("inceptionv3_inference", "resnet50_inference", "resnet50_training"),
        *("bert_L-12_training", "bert_l-12_inference", "bert_l-3_inference", "bert_l-3_training"),
    ],
)
def test_published_plans_run_at_their_max_load(benchmarks: Path, name: str) -> None:
    for path in sorted((benchmarks / "placement" / "throughput").glob(f"*/{name}.json")):
        workload = stagecut.load(path)
        cluster = workload.cluster
        assert cluster is not None
        plans = [stagecut.solve(workload, method="greedy").plan]
        assert plans[0] is not None
        assert stages_of(workload, plans[0]).count >= len(set(plans[0].placement.tolist()))
        plans += [plan_of(workload, cluster, x) for x in _noncontiguous(workload, cluster)]
        for plan in plans:
            assert plan is not None
            run = simulate(workload, plan, "pipedream")
            assert run.time_per_sample == pytest.approx(plan.objective, rel=1e-9)


def _noncontiguous(workload, cluster):
    """Twice around the accelerators in topological order, and at random; unsupported on a CPU."""
    count = cluster.kinds[0].count
    place = np.empty(workload.n, dtype=np.int64)
    place[list(workload.order)] = np.arange(workload.n)
    stands_for = representatives(workload)
    unable = np.isinf(workload.times["accelerator"])
    torn = set(stands_for[unable].tolist())
    host = np.array([int(stands_for[v]) in torn for v in range(workload.n)])
    rng = np.random.default_rng(0)
    for device in (place * 2 * count // workload.n % count, rng.integers(0, count, workload.n)):
        yield np.where(host, count, device[stands_for])


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("seed", range(15))
def test_times_are_the_longest_paths(name: str, seed: int) -> None:
    """Without overlap every action begins when its device and its inputs are there, no later."""
    stages = random_chain(seed)
    found = random_plan(seed, max_nodes=10, max_accelerators=3)
    if seed % 2 and found is not None:
        stages = stages_of(*found)
    schedule = make_schedule(name, stages, 4)
    run = simulate_stages(stages, schedule)
    share = stages.weight_share * stages.compute[:, 1]
    length = {Kind.F: stages.duration[:, 0], Kind.B: stages.duration[:, 1], Kind.W: share}
    length[Kind.I] = stages.duration[:, 1] - share
    split = "zb" in name
    ends: dict[Action, float] = {}
    orders = [schedule.of(d) for d in range(len(schedule.actions))]
    before = {}
    for order in orders:
        for previous, action in zip([None, *order[:-1]], order, strict=True):
            task = 2 * action.stage + (action.kind != Kind.F)
            back = Kind.I if split else Kind.B
            needs = [
                Action(a // 2, back if a % 2 else Kind.F, action.microbatch)
                for a, b in stages.edges.tolist()
                if b == task and action.kind != Kind.W
            ]
            if action.kind == Kind.W:
                needs.append(Action(action.stage, Kind.I, action.microbatch))
            before[action] = needs + ([previous] if previous else [])
    while len(ends) < len(before):
        for action, needs in before.items():
            if action not in ends and all(a in ends for a in needs):
                begin = max((ends[a] for a in needs), default=0.0)
                ends[action] = begin + float(length[action.kind][action.stage])
    for d, order in enumerate(orders):
        assert run.ends[d].tolist() == pytest.approx([ends[a] for a in order], rel=1e-12)


def test_a_chain_comes_back_to_a_device() -> None:
    stages = chain([1.0, 2.0, 3.0], device=[0, 1, 0])
    run = simulate_stages(stages, "inference", 4)
    assert run.time_per_sample == pytest.approx(4.0)
    assert simulate_stages(stages, "single", 1).makespan == 6.0


def test_transfers_through_host_memory_keep_both_ends_busy() -> None:
    stages = chain([1.0, 1.0], [1.0, 1.0], send=[0.5, 0.0])
    run = simulate_stages(stages, "1f1b", 1)
    assert run.ends[0].tolist() == [1.5, 6.0]
    assert run.starts[1].tolist() == [1.5, 3.0]
    assert run.ends[1].tolist() == [3.0, 4.5]
    assert run.transfer.tolist() == [1.0, 1.0]
    table = run.to_pandas()
    assert table["compute"].tolist() == [2.0, 2.0]


def test_overlap_moves_data_beside_compute() -> None:
    stages = chain([1.0, 1.0], send=[0.5, 0.0])
    run = simulate_stages(stages, "inference", 6, network=HostMemory(overlap=True))
    assert run.time_per_sample == pytest.approx(1.0)
    assert run.starts[1][0] == 2.0
    assert run.link_load["transfers"].tolist() == [6, 6]
    slow = chain([1.0, 1.0], send=[1.5, 0.0])
    run = simulate_stages(slow, "inference", 6, network=HostMemory(overlap=True))
    assert run.time_per_sample == pytest.approx(1.5)


def _fan(sharing_network: Links):
    """Two devices send 10 bytes each at time 1 to a third."""
    stages = chain([1.0, 1.0, 1.0], payload_bytes=[10.0, 10.0, 0.0])
    edges = np.array([[0, 4], [2, 4]])
    stages = dataclasses.replace(stages, edges=edges, payload_bytes=np.array([10.0, 10.0]))
    return simulate_stages(stages, "single", 1, network=sharing_network)


def test_links_of_their_own_do_not_compete() -> None:
    run = _fan(point_to_point(3, Link(0.25, 10.0)))
    assert run.starts[2].tolist() == [2.25]
    assert run.link_load["busy"].tolist() == [1.0, 1.0]


def test_a_shared_link_is_fair_or_first_come_first_served() -> None:
    fair = _fan(shared(3, Link(0.25, 10.0), sharing="fair"))
    assert fair.starts[2].tolist() == pytest.approx([3.25])
    assert [end for *_, end in fair.jobs()] == pytest.approx([3.25, 3.25])
    fifo = _fan(shared(3, Link(0.25, 10.0), sharing="fifo"))
    assert fifo.starts[2].tolist() == pytest.approx([3.25])
    assert [(begin, end) for *_, begin, end in fifo.jobs()] == [(1.0, 2.25), (2.0, 3.25)]


def test_fair_sharing_with_different_beginnings() -> None:
    """A alone for 1 s, then with B: both at half rate until A has its 20 bytes."""
    stages = chain([1.0, 2.0, 1.0], payload_bytes=[20.0, 10.0, 0.0])
    edges = np.array([[0, 4], [2, 4]])
    stages = dataclasses.replace(stages, edges=edges, payload_bytes=np.array([20.0, 10.0]))
    run = simulate_stages(stages, "single", 1, network=shared(3, Link(0.0, 10.0)))
    # From 2 on 10 bytes are left of each, at 5 bytes/s.
    assert [end for *_, end in run.jobs()] == pytest.approx([4.0, 4.0])


@pytest.mark.parametrize("seed", range(10))
def test_pipelines_over_links(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 6))
    stages = chain(
        rng.integers(2, 5, count).astype(float),
        rng.integers(2, 5, count).astype(float),
        payload_bytes=[1.0] * count,
    )
    fast = point_to_point(count, Link(0.5, 1.0))
    run = simulate_stages(stages, "pipedream", 8, network=fast)
    assert run.time_per_sample == pytest.approx(stages.load.max(), rel=1e-9)
    slow = simulate_stages(stages, "pipedream", 8, network=shared(count, Link(0.0, 0.25)))
    # The bus is the bottleneck: 4 s per message. Its order wanders, so this is a mean.
    assert slow.time_per_sample == pytest.approx(8 * (count - 1), rel=0.1)
    blocked = simulate_stages(
        stages, "pipedream", 8, network=point_to_point(count, Link(0.5, 1.0), overlap=False)
    )
    ends = np.full(count, 2) + (np.arange(count) % (count - 1) != 0) * 2
    assert blocked.time_per_sample == pytest.approx((stages.load + 1.5 * ends).max(), rel=1e-9)


def test_replicas_share_the_microbatches_and_reduce_their_gradients() -> None:
    stages = chain([2.0, 1.0], [4.0, 2.0], replicas=[[0, 1], [2]])
    assert simulate_stages(stages, "pipedream", 8).time_per_sample == pytest.approx(3.0)
    stages = chain([2.0, 1.0], [4.0, 2.0], replicas=[[0, 1], [2]], weight_bytes=[10.0, 7.0])
    network = HostMemory(all_reduce=Link(0.5, 10.0))
    ring = 2 * 0.5 * 1.0 + 2 * 0.5
    run = simulate_stages(stages, "1f1b", 4, network=network)
    for d in (0, 1):
        assert run.schedule.of(d)[-1] == Action(0, Kind.REDUCE_GRAD)
    assert run.starts[0][-1] == run.starts[1][-1] == max(run.ends[0][-2], run.ends[1][-2])
    assert run.ends[0][-1] - run.starts[0][-1] == pytest.approx(ring)
    with pytest.raises(InputError, match="all_reduce"):
        simulate_stages(stages, "1f1b", 4)
    with pytest.raises(InputError, match="all_reduce"):
        simulate_stages(stages, "pipedream", 4)


def test_asynchronous_replicas_reduce_round_by_round() -> None:
    stages = chain([2.0, 1.0], [4.0, 2.0], replicas=[[0, 1], [2]], weight_bytes=[10.0, 7.0])
    network = HostMemory(all_reduce=Link(0.5, 10.0))
    ring = 2 * 0.5 * 1.0 + 2 * 0.5
    run = simulate_stages(stages, "pipedream", 8, network=network)
    assert run.time_per_sample == pytest.approx((6.0 + ring) / 2, rel=1e-9)
    for d in (0, 1):
        reduces = [a.microbatch for a in run.schedule.of(d) if a.kind == Kind.REDUCE_GRAD]
        assert reduces == [0, 1, 2, 3]
    table = run.actions_to_pandas()
    both = table[table["kind"] == "REDUCE_GRAD"].groupby("microbatch")["start"]
    assert (both.nunique() == 1).all()
    assert (both.size() == 2).all()
    batch = dataclasses.replace(stages, batch=16)
    sliced = simulate_stages(batch, "2bw", 8, network=network)
    assert sliced.time_per_sample == pytest.approx((8 * 6.0 + ring) / 16, rel=1e-9)


@pytest.mark.parametrize("name", ["pipedream", "2bw"])
@pytest.mark.parametrize("seed", range(20))
def test_asynchronous_replicas_run_at_the_load(name: str, seed: int) -> None:
    """Any numbers of replicas: no stage waits for the all-reduce of another."""
    rng = np.random.default_rng(seed)
    stages = dataclasses.replace(random_chain(seed, most_replicas=4), batch=12)
    number = np.array([len(ring) for ring in stages.replicas])
    times = np.where(number > 1, rng.random(stages.count), 0.0)
    stages = dataclasses.replace(stages, all_reduce=times)
    per_round = times if name == "pipedream" else times * number / 12
    expected = ((stages.duration.sum(axis=1) + per_round) / number).max()
    run = simulate_stages(stages, name, 24)
    assert run.time_per_sample == pytest.approx(expected, rel=1e-9)


def test_memory_over_time_and_what_it_consists_of() -> None:
    stages = chain(
        [1.0] * 4, [2.0] * 4, weight_bytes=[100.0] * 4, activation_bytes=[3.0, 1.0, 1.0, 1.0]
    )
    run = simulate_stages(stages, "1f1b", 8)
    first = run.memory[0]
    assert (first.weights, first.versions, first.peak_activations) == (100.0, 0.0, 12.0)
    assert first.activations[-1] == 0.0
    assert simulate_stages(stages, "pipedream", 8).memory[0].versions == 300.0
    assert simulate_stages(stages, "2bw", 8).memory[0].versions == 100.0
    assert run.peak_memory["device 0"] == 112.0
    assert run.over_memory == []


def test_plans_that_break_rules_are_no_exceptions() -> None:
    """Stages without nodes, with too few devices, or on devices that the order does not name."""
    posed = task("iteration")
    plan = stagecut.solve(posed.workload, posed.cluster, posed.problem).plan
    assert plan is not None
    assert isinstance(plan.solution, PipelinePlacement)
    stage, devices = plan.solution.stage, plan.solution.devices
    with pytest.raises(InputError, match="a stage has no node"):
        _simulated(posed, plan, PipelinePlacement(stage, (*devices, 0)))
    with pytest.raises(InputError, match="comes later in the chain of stages; verify the plan"):
        _simulated(posed, plan, PipelinePlacement(stage.max() - stage, devices))
    posed = task("stream")
    plan = stagecut.solve(posed.workload, posed.cluster, posed.problem).plan
    assert plan is not None
    assert isinstance(plan.solution, StagePlacement)
    *first, last = plan.solution.stages
    for wrong in (dataclasses.replace(last, replicas=9),), (last, Stage((), (), 1, 1, last.kind)):
        with pytest.raises(InputError, match="has no node, or too few devices"):
            _simulated(posed, plan, in_stages([*first, *wrong], posed.cluster))
    posed = dataclasses.replace(task("throughput"), problem=Throughput("contiguous", relayed=True))
    plan = stagecut.solve(posed.workload, posed.cluster, posed.problem).plan
    assert plan is not None
    assert isinstance(plan.solution, Placement)
    with pytest.raises(InputError, match="does not name each device in use once"):
        _simulated(posed, plan, Placement(plan.solution.device, plan.solution.order[1:]))


def _simulated(posed: Task, plan: Plan, solution: Solution) -> None:
    simulate(posed.workload, dataclasses.replace(plan, solution=solution))


def test_a_byte_too_many_does_not_fit() -> None:
    """Of much memory, too: the verifier allows half a byte for rounding."""
    stages = chain([1.0], [2.0], weight_bytes=[2.0**34])
    for less, lines in ((0.0, 0), (0.5, 0), (1.0, 1)):
        tight = dataclasses.replace(stages, capacity_bytes=np.array([2.0**34 - less]))
        assert len(simulate_stages(tight, "1f1b", 2).over_memory) == lines


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("overlap", [False, True])
def test_the_critical_path_has_no_gaps(name: str, overlap: bool) -> None:
    stages = random_chain(3)
    run = simulate_stages(stages, name, 6, network=HostMemory(overlap=overlap))
    path = run.critical_path()
    assert path[0].start == 0.0
    assert path[-1].end == run.makespan
    for a, b in pairwise(path):
        assert a.end == pytest.approx(b.start)


def test_results_as_tables() -> None:
    run = simulate_stages(random_chain(4), "1f1b", 5)
    actions = run.actions_to_pandas()
    assert len(actions) == run.schedule.size
    assert run.to_pandas()["actions"].sum() == run.schedule.size
    assert (run.to_pandas()["idle"] >= 0).all()


def test_the_same_run_twice_is_the_same() -> None:
    stages = random_chain(2)
    network = shared(len(stages.devices), Link(0.1, 1.0))
    a, b = (simulate_stages(stages, "zb-h1", 9, network=network) for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(a.ends, b.ends, strict=True))


def test_contiguous_plans_give_one_stage_per_device() -> None:
    for seed in range(40):
        found = random_plan(seed, max_nodes=10, max_accelerators=3)
        if found is None or found[0].backward.any():
            continue
        workload, plan = found
        problem = Throughput(split="contiguous")
        if stagecut.runtime.evaluate(workload, plan.cluster, problem, plan.solution).violations:
            continue
        assert stages_of(workload, plan).count == len(set(plan.placement.tolist()))


def test_pieces_are_convex_and_complete() -> None:
    for seed in range(80):
        found = random_plan(seed, max_nodes=14, max_accelerators=3)
        if found is None:
            continue
        workload, plan = found
        stages = stages_of(workload, plan)
        placed = sorted(v for passes in stages.nodes for nodes in passes for v in nodes)
        assert placed == list(range(workload.n))
        for a, b in stages.edges.tolist():
            assert stages.rank[a] < stages.rank[b]
        for s, passes in enumerate(stages.nodes):
            for nodes in passes:
                assert {int(plan.placement[v]) for v in nodes} <= set(stages.replicas[s])


def _latency(workload, cluster, device, call) -> float:
    """Execute calls and CPU nodes one after the other, from the definition."""
    costs = price(workload, cluster)
    item = [
        (int(d), int(c)) if c >= 0 else (-1, v)
        for v, (d, c) in enumerate(zip(device, call, strict=True))
    ]
    finish: dict[tuple[int, int], float] = {}
    while len(finish) < len(set(item)):
        before = len(finish)
        for one in sorted(set(item) - finish.keys()):
            nodes = [v for v in range(workload.n) if item[v] == one]
            kind = costs.kind_of[device[nodes[0]]]
            into = {u for v in nodes for u in workload.predecessors[v]} - set(nodes)
            out = {u for u in nodes if set(workload.successors[u]) - set(nodes)}
            needs = {item[u] for u in into}
            needs |= {other for other in item if other[0] == one[0] >= 0 and other[1] < one[1]}
            if needs <= finish.keys():
                time = costs.compute[kind, nodes].sum()
                time += costs.transfer[kind, sorted(into)].sum()
                time += costs.transfer[kind, sorted(out)].sum()
                finish[one] = max((finish[o] for o in needs), default=0.0) + time
        if len(finish) == before:
            return np.inf
    return max(finish.values())


@pytest.mark.parametrize("seed", range(80))
def test_one_request_takes_its_latency(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=9, max_accelerators=3, max_kinds=2)
    rng = np.random.default_rng(seed)
    device = rng.integers(0, cluster.size, workload.n)
    place = np.empty(workload.n, dtype=np.int64)
    place[list(workload.order)] = np.arange(workload.n)
    host = np.array([cluster.kinds[one.kind].host for one in cluster.devices])
    call = np.where(host[device], -1, place // int(rng.integers(1, 5)))
    expected = _latency(workload, cluster, device, call)
    if np.isnan(expected) or np.isinf(price(workload, cluster).compute).any():
        return
    if np.isinf(expected):
        with pytest.raises(InputError, match="wait for each other"):
            stages_of_calls(workload, cluster, device, call)
        return
    run = simulate_stages(stages_of_calls(workload, cluster, device, call), "single")
    assert run.makespan == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_wrong_input_is_named() -> None:
    found = random_plan(1)
    other = random_plan(3)
    assert found is not None
    assert other is not None
    with pytest.raises(InputError, match="was made for"):
        simulate(other[0], found[1])
    with pytest.raises(InputError, match="its table is for 3 devices"):
        simulate_stages(chain([1.0]), "single", 1, network=point_to_point(3, Link(0, 1)))
    with pytest.raises(InputError, match="sharing"):
        shared(2, Link(0, 1), sharing="rude")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "bert24_inference",
        pytest.param("gnmt_inference", marks=pytest.mark.slow),
        "resnet50_inference",
    ],
)
@pytest.mark.parametrize("method", ["greedy", "max-load"])
def test_latency_plans_take_their_objective(benchmarks: Path, name: str, method: str) -> None:
    for path in sorted((benchmarks / "placement" / "latency").glob(f"*/{name}.json")):
        workload = stagecut.load(path)
        limits = stagecut.Limits(seconds=20)
        plan = stagecut.solve(workload, None, Latency(), method=method, limits=limits).plan
        if plan is not None:
            run = simulate(workload, plan)
            assert run.makespan == pytest.approx(plan.objective, rel=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_random_latency_plans_take_their_objective(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=9, max_accelerators=3, max_kinds=2)
    problem = Latency(calls=1 + seed % 3)
    plan = stagecut.solve(workload, cluster, problem, method="greedy").plan
    if plan is not None:
        run = simulate(workload, plan)
        assert run.makespan == pytest.approx(plan.objective, rel=1e-9, abs=1e-12)


def test_a_pass_that_takes_no_time_holds_its_activations_once() -> None:
    """At one time a pass begins before it ends."""
    stages = chain([0.0, 1.0], activation_bytes=[3.0, 5.0])
    found = simulate_stages(stages, "inference", 2)
    assert [device.peak_activations for device in found.memory] == [3.0, 5.0]
    assert min(device.activations.min() for device in found.memory) == 0.0
