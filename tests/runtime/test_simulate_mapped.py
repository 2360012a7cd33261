"""Mapped plans in the simulator: their definition, and messages that share links."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from stagecut import Plan, Workload, accelerators_and_cpus, solve
from stagecut.instances import DeviceMapping, ReplicaPlacement, topology
from stagecut.instances.common.arrays import Floats
from stagecut.runtime import evaluate
from stagecut.runtime.simulate.network import HostMemory, Links
from stagecut.runtime.simulate.plan_stages import chains, stages_of, topology_links
from stagecut.runtime.simulate.simulator import simulate, simulate_stages
from stagecut.runtime.simulate.stages import chain

TOPOLOGIES = ["mesh2d:3x4", "islands:3x4", "fattree:4", "ring:12", "uniform_dist:13@seed=2"]


def _training_chain(seed: int, stages: int) -> Workload:
    """Stages of a forward and a backward node each."""
    rng = np.random.default_rng(seed)
    edges = [(v, v + 1) for v in range(2 * stages - 1)]
    return Workload(
        name=f"training chain {seed}",
        ids=tuple(range(2 * stages)),
        edges=np.array(edges),
        times={"accelerator": rng.uniform(1.0, 3.0, 2 * stages)},
        memory_bytes=np.ones(2 * stages),
        transfer=None,
        output_bytes=rng.uniform(1e6, 50e6, 2 * stages),
        backward=np.arange(2 * stages) >= stages,
        colours=np.array([*range(stages), *reversed(range(stages))]),
        time_unit="ms",
        extra={"weight_bytes": rng.uniform(5e6, 100e6, 2 * stages)},
    )


def _random_mapping(seed: int, mode: str) -> tuple[Workload, Plan]:
    rng = np.random.default_rng(seed)
    stages, replicas = [(3, 4), (4, 3), (2, 5), (5, 1), (1, 6)][seed % 5]
    workload = _training_chain(seed, stages)
    where = topology(TOPOLOGIES[seed // 5 % len(TOPOLOGIES)])
    problem = DeviceMapping(where, stages, replicas, mode, microbatches=1 + seed % 4)  # type: ignore[arg-type]
    slots = rng.permutation(where.size)[: stages * replicas].reshape(stages, replicas)
    sends = [rng.permutation(replicas) for _ in range(stages - 1)]
    solution = ReplicaPlacement(
        workload.colours, slots, np.array(sends, np.int64).reshape(stages - 1, replicas)
    )
    cluster = accelerators_and_cpus(where.size)
    report = evaluate(workload, cluster, problem, solution)
    assert report.violations == ()
    return workload, Plan(
        workload_name=workload.name,
        workload_fingerprint=workload.fingerprint,
        cluster=cluster,
        problem=problem,
        solution=solution,
        objective=report.objective,
        bound=0.0,
        method="test",
        time_unit=workload.time_unit,
    )


@pytest.mark.parametrize("mode", ["both", "p2p"])
@pytest.mark.parametrize("seed", range(25))
def test_without_contention_a_mapping_runs_at_its_objective(seed: int, mode: str) -> None:
    workload, plan = _random_mapping(seed, mode)
    stages = stages_of(workload, plan)
    assert stages.batch is not None
    if mode == "p2p":  # the definition leaves out the all-reduce, the simulator does not
        stages = dataclasses.replace(stages, all_reduce=np.zeros(stages.count))
    run = simulate_stages(stages, "2bw", 8, network=HostMemory())
    assert run.time_per_sample * stages.batch == pytest.approx(plan.objective, rel=1e-9)


def test_microbatches_follow_the_matching() -> None:
    solution = ReplicaPlacement(
        np.array([0, 1, 2]),
        np.array([[4, 5, 6], [1, 2, 3], [7, 8, 9]]),
        np.array([[2, 0, 1], [0, 2, 1]]),
    )
    assert chains(solution) == ((4, 5, 6), (3, 1, 2), (8, 7, 9))


def test_a_mapped_plan_runs_over_its_topology() -> None:
    workload = _training_chain(3, 4)
    problem = DeviceMapping(topology("mesh2d:4x4"), 4, 4, "both", microbatches=4)
    plan = solve(workload, problem=problem).plan
    assert plan is not None
    run = simulate(workload, plan)
    assert run.schedule.microbatches == 16
    assert isinstance(run.network, Links)
    assert run.network.sharing == "fair"
    assert run.busiest_link is not None
    assert "→" in run.busiest_link[0]
    longest = float(run.link_load["busy"].max())
    assert run.busiest_link[1] == pytest.approx(longest / run.makespan)
    assert run.makespan * 1e-3 > 4 * run.stages.compute.sum(axis=1).max() * 1e-3


def test_every_route_is_that_of_the_topology() -> None:
    _, plan = _random_mapping(1, "both")
    assert isinstance(plan.problem, DeviceMapping)
    assert isinstance(plan.solution, ReplicaPlacement)
    network = topology_links(plan.problem, plan.solution)
    routes = plan.problem.topology.routes
    for a, b in np.argwhere(network.route >= 0).tolist():
        route = network.route[a, b]
        assert network.route_latency_s[route] == pytest.approx(routes.latency_s[a, b])
        assert network.route_bytes_per_s[route] == pytest.approx(routes.bytes_per_s[a, b])


def _messages(begin: Floats, size: Floats, network: Links) -> Floats:
    """Send message i from device i at its time to device K + i; return when each arrives."""
    count = len(begin)
    stages = chain([*begin, *np.ones(count)], payload_bytes=[0.0] * (2 * count))
    edges = np.array([(2 * i, 2 * (count + i)) for i in range(count)])
    stages = dataclasses.replace(stages, edges=edges, payload_bytes=size)
    run = simulate_stages(stages, "single", 1, network=network)
    return np.array([float(run.starts[count + i][0]) for i in range(count)])


def _expected(begin: Floats, size: Floats, network: Links) -> Floats:
    """Fluid messages with max–min fair rates, step by step."""
    rest = {i: float(s) for i, s in enumerate(size)}
    routes = [network.routes[i] for i in range(len(size))]
    arrival = np.zeros(len(size))
    now = 0.0
    while rest:
        flowing = [i for i in rest if begin[i] <= now]
        rate: dict[int, float] = {}
        room = dict(enumerate(network.bytes_per_s.tolist()))
        while len(rate) < len(flowing):
            users = {
                link: [i for i in flowing if i not in rate and link in routes[i]] for link in room
            }
            share, link = min((room[k] / len(u), k) for k, u in users.items() if u)
            for i in users[link]:
                rate[i] = share
                for k in routes[i]:
                    room[k] -= share
        step = min(
            [rest[i] / rate[i] for i in flowing] + [begin[i] - now for i in rest if begin[i] > now]
        )
        now += step
        for i in flowing:
            rest[i] -= step * rate[i]
            if rest[i] <= 1e-9 * size[i]:
                arrival[i] = now + network.latency_s[list(routes[i])].sum()
                del rest[i]
    return arrival


@pytest.mark.parametrize("seed", range(40))
def test_messages_share_links_max_min_fairly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, links = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    whole = seed % 2 == 0  # whole numbers make ties
    begin = rng.integers(1, 4, count).astype(float) if whole else rng.uniform(1, 4, count)
    size = rng.integers(1, 6, count).astype(float) if whole else rng.uniform(1, 6, count)
    rate = rng.integers(1, 4, links).astype(float) if whole else rng.uniform(1, 4, links)
    routes = tuple(
        tuple(rng.permutation(links)[: int(rng.integers(1, links + 1))].tolist())
        for _ in range(count)
    )
    table = np.full((2 * count, 2 * count), -1)
    table[np.arange(count), count + np.arange(count)] = np.arange(count)
    network = Links(table, rng.uniform(0, 1, links), rate, sharing="fair", routes=routes)
    assert _messages(begin, size, network) == pytest.approx(
        _expected(begin, size, network), rel=1e-9
    )


def test_a_message_alone_takes_the_postal_time() -> None:
    network = Links(
        np.array([[-1, 0], [-1, -1]]),
        np.array([0.5, 0.25]),
        np.array([4.0, 2.0]),
        sharing="fair",
        routes=((0, 1),),
    )
    assert _messages(np.array([1.0]), np.array([6.0]), network).tolist() == [1 + 6 / 2 + 0.75]


def test_long_runs_over_shared_links_end() -> None:
    """Times that differ by less than the clock can tell must not stop it."""
    network = Links(
        np.array([[-1, 0], [-1, -1]]),
        np.array([0.0]),
        np.array([3.0]),
        sharing="fair",
        routes=((0,),),
    )
    stages = chain([1e6, 1e-9], payload_bytes=[1e-9, 0.0])
    run = simulate_stages(stages, "inference", 50, network=network)
    assert math.isfinite(run.makespan)
