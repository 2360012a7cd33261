"""The compact program against brute force, its deadline, Ctrl-C, other solvers, model files."""

from __future__ import annotations

import math

import pytest
from brute import best_max_load
from cases import random_case

from stagecut import Throughput, solve

PROBLEMS = [
    Throughput(split=split, cpu_split=cpu, pipeline=pipeline, overlap=overlap)
    for split in ("noncontiguous", "contiguous", "per-device")
    for cpu in ("contiguous", "free")
    for pipeline in ("pipedream", "gpipe")
    for overlap in (False, True)
]


@pytest.mark.parametrize("chunk", range(20))
def test_the_program_and_brute_force_agree_on_500_random_cases(chunk: int) -> None:
    for seed in range(25 * chunk, 25 * (chunk + 1)):
        problem = PROBLEMS[seed % len(PROBLEMS)]
        nodes = 8 if seed % 5 == 0 else 6
        workload, cluster = random_case(seed, max_nodes=nodes, max_cores=2, max_kinds=1 + seed % 2)
        best = best_max_load(workload, cluster, problem)
        result = solve(workload, cluster, problem, method="milp")
        where = f"seed {seed}: {problem}"
        if math.isinf(best):
            assert result.status == "infeasible", where
            assert result.reason, where
        else:
            assert result.objective == pytest.approx(best, rel=1e-6, abs=1e-9), where
            assert result.status == "optimal", where
