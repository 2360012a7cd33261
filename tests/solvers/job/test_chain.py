"""A chain executed by the kernel has the simulator's makespan, and paths that explain it."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_line

from stagecut import PipelineJob
from stagecut.formulations.job.orders import Chain, order_of
from stagecut.instances.common.arrays import Floats
from stagecut.solvers.job.iteration.annealing_kernel import too_long


@pytest.mark.parametrize("part", range(5))
def test_makespans_are_the_simulators(part: int) -> None:
    for seed in range(part, 250, 5):
        line = random_line(seed)
        simulated = line.simulated().makespan
        found = line.chain.makespan(line.durations)
        assert found == pytest.approx(simulated, rel=1e-12), f"seed {seed}: {line.problem}"


@pytest.mark.parametrize("part", range(5))
def test_the_longest_path_is_the_makespan_and_a_bound_for_other_times(part: int) -> None:
    """Equation 1: the counts of a path do not depend on the times."""
    for seed in range(part, 150, 5):
        line, rng = random_line(seed), np.random.default_rng(seed)
        chain, where = line.chain, f"seed {seed}: {line.problem}"
        makespan, counts, _ = chain.longest_path(line.durations)
        assert (counts * line.durations).sum() == pytest.approx(makespan, rel=1e-12), where
        assert makespan == chain.makespan(line.durations), where
        for _ in range(3):
            other = line.durations * rng.uniform(0, 2, (len(line.forward), 1))
            assert (counts * other).sum() <= chain.makespan(other) * (1 + 1e-12), where


def test_known_paths_refuse_chains_that_are_too_long_and_no_others() -> None:
    """Annealing executes no chain that one of the last longest paths refuses."""
    refused = 0
    for seed in range(60):
        line, rng = random_line(seed), np.random.default_rng(seed)
        chain, where = line.chain, f"seed {seed}: {line.problem}"
        times = [line.durations * rng.uniform(0, 2, (len(line.forward), 1)) for _ in range(5)]
        paths = np.array([chain.longest_path(one)[1] for one in times[1:]])
        longest = max(float((path * times[0]).sum()) for path in paths)
        for part in (0.8, 0.99, 1.01):
            before = sorted(path.tobytes() for path in paths)
            found = too_long.function(paths, len(paths), times[0], longest * part)
            assert found == (longest > longest * part), where
            assert not found or chain.makespan(times[0]) > longest * part, where
            assert before == sorted(path.tobytes() for path in paths), where
            refused += found
    assert refused > 60


def makespan(schedule: str, microbatches: int, forward: Floats, backward: Floats,
             chunks: int = 1) -> float:  # fmt: skip
    """Return the makespan of stages under a schedule."""
    problem = PipelineJob(microbatches, schedule, chunks=chunks)
    chain = Chain(order_of(problem, len(forward), True), problem.weight_share)
    return chain.makespan(chain.durations(forward, backward, backward))


def test_the_closed_forms_of_the_documentation() -> None:
    """docs/job.md, equations 3 to 6, and that 1F1B is never slower than GPipe."""
    rng = np.random.default_rng(5)
    for case in range(300):
        p, m = int(rng.integers(1, 7)), int(rng.integers(1, 14))
        f, b = rng.uniform(0, 5, (2, p)) ** rng.integers(1, 4)
        if case % 2:
            b = 2.0 * f
        w, behind = f + b, np.arange(p)[::-1]
        gpipe, one = makespan("gpipe", m, f, b), makespan("1f1b", m, f, b)
        assert gpipe == pytest.approx(w.sum() + (m - 1) * (f.max() + b.max()), rel=1e-12)
        alone = max(w[:s].sum() + m * w[s] for s in range(p))
        first = w.sum() + (np.maximum(m - 1 - behind, 0) * f + (m - 1) * b).max()
        assert max(alone, first) <= one * (1 + 1e-12)
        assert one <= gpipe * (1 + 1e-12)
        if case % 2:
            assert one <= (w.sum() + (m - 1) * w.max()) * (1 + 1e-12)
        chunks, rounds = int(rng.integers(2, 4)), int(rng.integers(1, 4))
        equal = np.ones(p * chunks)
        alike = makespan("interleaved", p * rounds, equal, 2 * equal, chunks)
        assert alike == pytest.approx(3 * (p * rounds * chunks + p - 1), rel=1e-12)
