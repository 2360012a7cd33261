"""Rings spread over blocks, against all orders of all sets of devices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stagecut.formulations.mapping.kernels import has_ring, has_spread_ring
from stagecut.instances.common.arrays import Bools, Ints


def possible(admitted: Bools, block: Ints, most: Ints, replicas: int) -> bool:
    """Try everything; the ring of two devices is one link."""
    for chosen in itertools.permutations(range(len(block)), replicas):
        if chosen[0] != min(chosen):
            continue
        if (np.bincount(block[list(chosen)], minlength=len(most)) > most).any():
            continue
        links = zip(chosen, (*chosen[1:], chosen[0]), strict=True)
        if all(admitted[a, b] for a, b in links):
            return True
    return False


@pytest.mark.parametrize("replicas", [2, 3, 4, 5])
def test_spread_rings_against_brute_force(replicas: int) -> None:
    answers = []
    for seed in range(60):
        rng = np.random.default_rng((seed, replicas))
        admitted = rng.random((7, 7)) < rng.choice([0.3, 0.5, 0.8])
        admitted = np.triu(admitted, 1) | np.triu(admitted, 1).T
        block = np.sort(rng.integers(3, size=7))
        most = rng.integers(0, 4, size=3)
        found = has_spread_ring(admitted, block, most, replicas)
        assert found == possible(admitted, block, most, replicas)
        answers.append(found)
        if (most >= replicas).all():
            assert found == has_ring(admitted, replicas)
    assert {True, False} == set(answers)
