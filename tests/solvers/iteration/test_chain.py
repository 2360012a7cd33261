"""A chain executed by the kernel has the simulator's makespan, and paths that explain it."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_line


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
        makespan, counts = chain.longest_path(line.durations)
        assert (counts * line.durations).sum() == pytest.approx(makespan, rel=1e-12), where
        assert makespan == chain.makespan(line.durations), where
        for _ in range(3):
            other = line.durations * rng.uniform(0, 2, (len(line.forward), 1))
            assert (counts * other).sum() <= chain.makespan(other) * (1 + 1e-12), where
