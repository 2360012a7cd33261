"""Random pipelines for tests: plans of random cases, and stages with replicas."""

from __future__ import annotations

import math

import numpy as np
from cases import random_case

from stagecut import Plan, Throughput, Workload
from stagecut.instances import Placement
from stagecut.instances.common.arrays import Ints
from stagecut.runtime import evaluate
from stagecut.runtime.simulate.stages import StageGraph, chain


def plan_of(workload: Workload, cluster, device: Ints, problem: Throughput | None = None) -> Plan:
    """Return the plan that puts each node on the device given."""
    problem = problem or Throughput()
    solution = Placement(device)
    return Plan(
        workload_name=workload.name,
        workload_fingerprint=workload.fingerprint,
        cluster=cluster,
        problem=problem,
        solution=solution,
        objective=evaluate(workload, cluster, problem, solution).objective,
        bound=0.0,
        method="test",
        time_unit=workload.time_unit,
    )


def random_plan(seed: int, overlap: bool = False, **sizes: int) -> tuple[Workload, Plan] | None:
    """Return a random workload with a random placement, None if a node cannot run there."""
    workload, cluster = random_case(seed, max_kinds=2, **sizes)
    device = np.random.default_rng(seed).integers(0, cluster.size, workload.n)
    plan = plan_of(workload, cluster, device, Throughput(overlap=overlap))
    return None if math.isinf(plan.objective) else (workload, plan)


def random_chain(seed: int, most_replicas: int = 1) -> StageGraph:
    """Return a chain of up to five unequal stages, on devices of their own."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    number = rng.integers(1, most_replicas + 1, count)
    first = np.cumsum([0, *number])
    return chain(
        rng.integers(1, 5, count).astype(float),
        rng.integers(1, 7, count).astype(float),
        send=rng.integers(0, 2, count).astype(float),
        replicas=[range(first[s], first[s + 1]) for s in range(count)],
        activation_bytes=rng.integers(1, 9, count).astype(float),
        weight_bytes=rng.integers(1, 9, count).astype(float),
    )
