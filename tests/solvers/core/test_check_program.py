"""Proofs by branch and bound, against solutions in rational numbers and brute force."""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from brute import best_max_load
from cases import random_case
from conformance import task
from exact_programs import loosened, random_program, solutions
from scipy.sparse import csc_array

from stagecut import InfeasibleError, Limits, Throughput, solve
from stagecut.formulations.linear import Linear
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.compact import compact
from stagecut.solvers.core import milp_driver, proofs
from stagecut.solvers.core.compiled_model import compile_model
from stagecut.solvers.core.proofs import LpRelaxation, ProofOutcome, check


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_verdicts_are_right(seed: int, wide: bool) -> None:
    linear = random_program(seed, wide=wide, continuous=seed % 3)
    found = solutions(linear)
    nearly = solutions(loosened(linear, 1.01 * proofs.ROW_SLACK))
    optimum = float(found[0][0]) if found else 5.0
    step = 1e-6 * max(1.0, abs(optimum))
    for target in (optimum - step, optimum, optimum + step, math.inf):
        verdict = check(linear, target)
        if verdict is ProofOutcome.PROVED:
            assert not any(value < target for value, _ in found)
        elif verdict is ProofOutcome.REFUTED:
            assert any(value < target + 1e-9 * step for value, _ in nearly)
        else:
            assert wide or target == optimum  # it may give up where rounding decides


def load(matrix: list[list[float]], upper: list[float], cost: list[float]) -> Linear:
    """Binary columns with rows ≤ upper."""
    n = len(cost)
    return Linear(
        cost=np.array(cost),
        column_lower=np.zeros(n),
        column_upper=np.ones(n),
        integer=np.ones(n, np.bool_),
        matrix=csc_array(np.array(matrix)),
        row_lower=np.full(len(upper), -np.inf),
        row_upper=np.array(upper),
    )


def test_a_lying_solver_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = load([[1.0, 1.0, 1.0]], [2.0], [-1.0, -1.0, -1.0])

    def lie(program: Linear) -> LpRelaxation:
        return LpRelaxation(None, np.full(len(program.row_lower), 7.0))

    monkeypatch.setattr(proofs, "relax", lie)
    assert check(linear, -1.5) is not ProofOutcome.PROVED
    assert check(linear, -2.5) is not ProofOutcome.REFUTED


def test_it_gives_up_when_told() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(10**6, 10**7, 40).astype(np.float64)
    rows = [sizes.tolist(), (-sizes).tolist()]
    half = float(sizes.sum() // 2) + 0.5
    split = load(rows, [half, -half], [0.0] * 40)
    assert (
        check(replace(split, row_upper=np.array([half + 0.1, -half + 0.1])), math.inf)
        is ProofOutcome.PROVED
    )
    hard = replace(split, row_upper=np.array([half, 1 - half]))
    looks = itertools.count()
    stopped = check(hard, math.inf, should_stop=lambda: next(looks) >= 20)
    assert stopped is ProofOutcome.UNDECIDED


@pytest.mark.parametrize("split", ["noncontiguous", "contiguous", "per-device"])
@pytest.mark.parametrize("big", [1e8, 1e10])
@pytest.mark.parametrize("seed", range(8))
def test_the_compact_program_with_transfers_nobody_can_pay(
    seed: int, big: float, split: str
) -> None:
    workload, cluster = random_case(seed, max_nodes=7, max_kinds=2)
    assert workload.transfer is not None
    some = np.random.default_rng(seed).random(workload.n) < 0.4
    workload = replace(workload, transfer=np.where(some, big, workload.transfer))
    problem = Throughput(split=split)
    optimum = best_max_load(workload, cluster, problem)
    try:
        linear = compile_model(compact(pose(workload, cluster, problem)).model).linear
    except InfeasibleError:
        linear = None
    if linear is None:
        assert optimum == math.inf
    elif optimum == math.inf:
        assert check(linear, math.inf) is ProofOutcome.PROVED
    else:
        assert check(linear, optimum * (1 - 1e-9)) is ProofOutcome.PROVED
        if optimum > 0:
            assert check(linear, optimum * (1 + 1e-9)) is ProofOutcome.REFUTED
        assert check(linear, math.inf) is ProofOutcome.REFUTED


def test_ctrl_c_ends_the_proof_of_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    def waits(_linear: Linear, _target: float, *, should_stop: Callable[[], bool]) -> ProofOutcome:
        signal.raise_signal(signal.SIGINT)
        until = time.monotonic() + 60
        while not should_stop() and time.monotonic() < until:
            time.sleep(0.005)
        ended.append(should_stop())
        return ProofOutcome.UNDECIDED

    monkeypatch.setattr(milp_driver, "check", waits)
    of = task("throughput", [1.0, 2.5, 3.0, 2.1])
    result = solve(of.workload, of.cluster, of.problem, method="milp", limits=Limits(seconds=120))
    assert ended == [True]
    assert result.limit in ("interrupt", "none")  # none if the bound as claimed had ended it
    assert not any("left behind" in note for note in result.notes)
