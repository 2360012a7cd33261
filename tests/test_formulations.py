"""The integer programs as stated: what is left out, what their rows are called and say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from brute import best_max_load
from cases import linked_case, random_case

from stagecut import Limits, Throughput
from stagecut.formulations.compact import compact
from stagecut.formulations.task import pose
from stagecut.solvers.compiled_model import compile_model
from stagecut.solvers.highs import run_highs
from stagecut.solvers.search import Search

PROBLEMS = [
    Throughput(split=split, cpu_split=cpu, pipeline=pipeline, overlap=overlap)
    for split in ("noncontiguous", "contiguous", "per-device")
    for cpu in ("contiguous", "free")
    for pipeline in ("pipedream", "gpipe")
    for overlap in (False, True)
]


@pytest.mark.parametrize("chunk", range(4))
def test_what_exceeds_the_cutoff_has_no_coefficient_and_no_better_placement(chunk: int) -> None:
    for seed in range(24 * chunk, 24 * (chunk + 1)):
        for make in (random_case, linked_case):
            workload, cluster = make(seed, max_nodes=6, max_cores=1, max_kinds=1 + seed % 2)
            dear = np.where(np.random.default_rng(seed).random(workload.n) < 0.4, 1e10, 1.0)
            if workload.transfer is None:
                workload = replace(workload, output_bytes=workload.output_bytes * dear)
            else:
                workload = replace(workload, transfer=workload.transfer * dear)
            problem = PROBLEMS[seed % len(PROBLEMS)]
            best = best_max_load(workload, cluster, problem)
            if not 0 < best < 1e6:
                continue
            stated = compact(pose(workload, cluster, problem), reference=best, cutoff=best)
            linear = compile_model(stated.model).linear
            where = f"seed {seed}: {problem}"
            assert linear is not None, where
            assert np.abs(linear.matrix.data).max() < 1.1e4, where
            never: Search[object] = Search(Limits(), lambda _: math.inf)
            outcome = run_highs(linear, never, gap=0.0)
            assert outcome.objective * stated.scale == pytest.approx(best, rel=1e-6), where
