"""A tenth of `benchmarks/random_cases.py`: random cases over all methods, against brute force."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from every_solver import PARTS, every_solver, incumbent_of, solvers_of, unknown_arguments, worst
from sweep import (
    BIGS,
    DEFECTS,
    ORDINARY,
    RANGES,
    RULED,
    VARIANTS,
    WIDE,
    Case,
    ask,
    case_of,
    judged,
    methods_of,
)
from wide_cases import three_never

from stagecut import Result, Throughput, Workload, accelerators_and_cpus, solve
from stagecut.instances import Solution, Split
from stagecut.solvers import METHODS
from stagecut.solvers.core.search import Search

#: Cases of each variant, each by all methods: a test each, and in the slow test.
FEW, MANY = 4, 60


def defects(variant: str, seeds: range) -> list[str]:
    """Return what methods said of cases that is wrong."""
    found = []
    for seed in seeds:
        case = case_of(variant, seed)
        optimum = case.optimum()
        for method in methods_of(case):
            said = ask(case, method, optimum)
            if said.word in DEFECTS:
                found.append(f"{variant} {seed} {method}: {said.word}: {said.detail}")
    return found


@pytest.mark.parametrize("block", range(FEW))
@pytest.mark.parametrize("variant", ORDINARY)
def test_ordinary_numbers(variant: str, block: int) -> None:
    assert not defects(variant, range(block, block + 1))


@pytest.mark.parametrize("block", range(1))
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=() if name.startswith("wide") or n % 6 == 0 else pytest.mark.slow)
        for n, name in enumerate(WIDE)
    ],
)
def test_numbers_of_many_orders_of_magnitude(variant: str, block: int) -> None:
    assert not defects(variant, range(block, block + 1))


@pytest.mark.parametrize("block", range(2))
@pytest.mark.parametrize("variant", RULED)
def test_placement_rules(variant: str, block: int) -> None:
    assert not defects(variant, range(block, block + 1))


def test_every_solver_is_in_the_sweep() -> None:
    """A new one is found by itself; it may need a line in `GIVEN` for what it takes."""
    assert set(unknown_arguments()) <= PARTS
    assert "throughput.dp.few_ideals_dp" in every_solver()
    assert len(every_solver()) > sum(map(len, METHODS.values()))


#: Variants for CI, one of each problem; the others take some 10 s each.
SAMPLE = ("throughput contiguous", "latency 1 call", "iteration", "training", "mapping",
          "sharding in little memory")  # fmt: skip


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=[] if name.removeprefix("ranges ") in SAMPLE else pytest.mark.slow)
        for name in RANGES
    ],
)
def test_no_solver_claims_too_much_of_numbers_up_to_1e17(variant: str) -> None:
    """Each by name, beside incumbents that hide nothing; more: `random_cases.py --solvers`."""
    case = case_of(variant, 1)
    optimum, incumbent = case.optimum(), incumbent_of(case)
    functions = [name for name in solvers_of(case) if " " not in name]  # not methods again
    said = {name: worst(case, name, optimum, incumbent) for name in functions}
    assert not {name: word for name, word in said.items() if word.word in DEFECTS}


def test_a_claim_that_is_too_high_is_seen_beside_any_incumbent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = case_of("ranges throughput contiguous", 2)
    optimum, incumbent = case.optimum(), incumbent_of(case)
    assert math.isfinite(optimum)
    name = "throughput.multilevel.least_load.raise_by_least_load"

    def claim(task: object, search: Search[Solution]) -> None:  # noqa: ARG001
        search.raise_bound(1.1 * optimum, "nothing")

    lying = replace(every_solver()[name], run=claim)
    monkeypatch.setitem(every_solver(), name, lying)
    assert worst(case, name, optimum, incumbent).word == "bound above the optimum"


def test_a_chain_whose_units_run_nowhere_is_no_plan_and_no_error() -> None:
    """Nodes pinned to two devices wait for each other, so that chains hold them together."""
    assert not defects("rules iteration noncontiguous", range(104, 105))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_many(variant: str) -> None:
    assert not defects(variant, range(1000, 1000 + MANY))


@pytest.mark.parametrize("method", METHODS["throughput"])
@pytest.mark.parametrize("split", Split)
def test_transfers_that_nobody_pays_do_not_make_a_case_infeasible(method: str, split: str) -> None:
    workload, cluster = three_never()
    problem = Throughput(split=split)  # type: ignore[arg-type]
    case = Case(workload, cluster, problem, lambda: math.nan)
    possible = split == "noncontiguous"  # of the others, none fits
    said = ask(case, method, 2.733584204881363 if possible else math.inf)
    assert said.word not in DEFECTS, said
    if method == "auto":
        assert said.word == ("optimal" if possible else "infeasible"), said


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize("big", [big for big in BIGS if big > 1e3])
def test_a_large_transfer_within_a_stage_leaves_no_rounding_in_the_sums(
    big: float, relayed: bool
) -> None:
    """0 → 1 ⇒ 2 | 3 ⇒ 4 ⇒ 5 and 0 → 4: the first stage takes 5 and transfers of 0.2 and 0.1."""
    workload = Workload(
        name="large transfers",
        ids=tuple(range(6)),
        edges=np.array([(0, 1), (0, 4), (1, 2), (2, 3), (3, 4), (4, 5)]),
        times={"accelerator": np.array([1.0, 1, 3, 1, 1, 1])},
        memory_bytes=np.ones(6),
        transfer=np.array([0.2, big, 0.1, big, big, 0]),
    )
    problem = Throughput(split="contiguous", relayed=relayed)
    result = solve(workload, accelerators_and_cpus(2), problem, method="dp")
    assert result.status == "optimal"
    assert result.objective == pytest.approx(5.3, rel=1e-12)
    assert result.bound == pytest.approx(5.3, rel=1e-12)


def test_what_is_wrong_is_seen() -> None:
    """Each kind of wrong answer is told from a right one."""
    case = case_of("throughput noncontiguous", 5)
    right = solve(case.workload, case.cluster, case.problem)
    assert right.objective is not None
    optimum = case.optimum()
    assert judged(case, right, optimum).word == "optimal"

    def said(result: Result, least: float) -> str:
        return judged(case, result, least).word

    assert said(right, 0.9 * optimum) == "bound above the optimum"
    assert said(right, 1.1 * optimum) == "better than brute force"


@pytest.mark.parametrize("seed", [49, 52])
def test_layers_that_fit_on_no_device_claim_no_bound(seed: int) -> None:
    """The least stage time of such a layer is infinite, and a batch's bound was inf or NaN."""
    assert not defects("wide training", range(seed, seed + 1))
