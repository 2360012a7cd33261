"""The verifier against brute force, and against plans that break one rule."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from brute import best_max_load
from cases import random_case

from stagecut import Throughput
from stagecut.instances import Placement
from stagecut.runtime import evaluate

PROBLEMS = [
    Throughput(split=split, cpu_split=cpu, pipeline=pipeline, overlap=overlap)
    for split in ("contiguous", "per-device", "noncontiguous")
    for cpu in ("contiguous", "free")
    for pipeline in ("pipedream", "gpipe")
    for overlap in (False, True)
]


@pytest.mark.parametrize("seed", range(48))
def test_the_verifier_and_brute_force_agree_on_every_placement(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=5, max_accelerators=2, max_kinds=2)
    problem = PROBLEMS[seed % len(PROBLEMS)]
    best = math.inf
    for devices in itertools.product(range(cluster.size), repeat=workload.n):
        report = evaluate(workload, cluster, problem, Placement(np.array(devices)))
        if not report.violations:
            best = min(best, report.objective)
    assert best == pytest.approx(best_max_load(workload, cluster, problem), rel=1e-12)
