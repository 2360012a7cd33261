"""The compact program against brute force, its deadline, Ctrl-C, other solvers, model files."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import highspy
import numpy as np
import pyomo.environ as pyo
import pytest
from brute import best_max_load
from cases import THROUGHPUT_PROBLEMS, random_case
from project import ROOT
from sweep import case_of

from stagecut import (
    InputError,
    Limits,
    Throughput,
    Workload,
    accelerators_and_cpus,
    formulation,
    load,
    solve,
)
from stagecut.formulations.task import Task, pose
from stagecut.formulations.throughput.cheap_bounds import count_out
from stagecut.formulations.throughput.hypergraph import hypergraph
from stagecut.instances import Solution
from stagecut.solvers import Search
from stagecut.solvers.throughput import milp

BERT_12 = "placement/throughput/OperatorGraphs/bert_L-12_training.json"


@pytest.mark.parametrize("chunk", range(20))
def test_the_program_and_brute_force_agree_on_500_random_cases(chunk: int) -> None:
    for seed in range(25 * chunk, 25 * (chunk + 1)):
        problem = THROUGHPUT_PROBLEMS[seed % len(THROUGHPUT_PROBLEMS)]
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


def test_without_a_plan_to_start_from_the_program_finds_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(milp, "greedy", lambda *_: None)
    for seed in range(1000, 1072):
        problem = THROUGHPUT_PROBLEMS[seed % len(THROUGHPUT_PROBLEMS)]
        workload, cluster = random_case(seed, max_nodes=6, max_cores=2, max_kinds=1 + seed % 2)
        best = best_max_load(workload, cluster, problem)
        result = solve(workload, cluster, problem, method="milp")
        found = math.inf if result.objective is None else result.objective
        assert found == pytest.approx(best, rel=1e-6, abs=1e-9), f"seed {seed}: {problem}"


def counted(task: Task[Throughput]) -> float:
    """Return the bound by counting of a task's units."""
    kinds = np.flatnonzero(task.costs.count > 0)
    return count_out(hypergraph(task).compute.sum(axis=1)[kinds], task.costs.count[kinds])


def test_counting_never_passes_the_optimum() -> None:
    for seed in range(300):
        workload, cluster = random_case(seed, max_nodes=6, max_cores=2, max_kinds=1 + seed % 2)
        best = best_max_load(workload, cluster, Throughput())
        task = pose(workload, cluster, Throughput())
        assert counted(task) <= best * (1 + 1e-12), seed


def test_counting_knows_that_five_equal_units_on_two_devices_means_three_on_one() -> None:
    task = pose(equal_units(5), accelerators_and_cpus(2, 1), Throughput())
    assert counted(task) == pytest.approx(3.0, rel=1e-8)


def test_a_start_is_used_and_a_plan_that_breaks_a_rule_is_not() -> None:
    workload, cluster = random_case(9, max_nodes=8, max_cores=1)
    first = solve(workload, cluster, method="milp")
    assert first.plan is not None
    again = solve(workload, cluster, method="milp", start=first.plan, limits=Limits(nodes=0))
    assert again.objective == first.objective
    assert not again.notes


def test_the_same_node_limit_and_seed_give_the_same_plan(benchmarks: Path) -> None:
    workload = load(benchmarks / "placement/throughput/LayerGraphs/bert24_training.json")
    results = [solve(workload, method="milp", limits=Limits(nodes=1, seed=5)) for _ in range(2)]
    plans = [result.plan for result in results]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].placement.tolist() == plans[1].placement.tolist()
    assert results[0].bound == results[1].bound
    assert results[0].limit in ("nodes", "none")


def test_a_deadline_ends_the_search_with_a_plan(benchmarks: Path) -> None:
    workload = load(benchmarks / BERT_12)
    result = solve(workload, method="milp", limits=Limits(seconds=3))
    assert result.plan is not None
    assert result.limit == "time"
    assert result.bound > 0


def test_time_that_is_up_while_building_ends_the_search(
    benchmarks: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = []
    stop = Search.should_stop

    def soon(search: Search[Solution]) -> bool:
        if "start" in search.phases:
            begun.append(1)
        if len(begun) > 200:
            search.interrupt()
        return stop(search)

    monkeypatch.setattr(Search, "should_stop", soon)
    result = solve(load(benchmarks / BERT_12), method="milp")
    assert result.plan is not None
    assert result.limit == "interrupt"
    assert "solve" not in result.phases
    assert "ERROR" not in capfd.readouterr().err


@pytest.mark.slow  # `make test` interrupts the command, in `tests/cli/test_cli.py`
def test_ctrl_c_returns_the_plan_found_so_far(benchmarks: Path) -> None:
    program = (
        "import stagecut\n"
        "def said(progress):\n"
        "    if progress.point.objective < float('inf'): print('going', flush=True)\n"
        f"workload = stagecut.load({str(benchmarks / BERT_12)!r})\n"
        "result = stagecut.solve(workload, method='milp', on_progress=said)\n"
        "print('ended', result.status, result.limit, result.plan.objective > 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"  # the first plan: HiGHS comes next
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert "ended feasible interrupt True" in rest
    assert process.returncode == 0


@pytest.mark.parametrize("solver", ["glpk", "cbc"])
def test_another_solver_that_pyomo_knows(solver: str) -> None:
    if not pyo.SolverFactory(solver).available(exception_flag=False):
        pytest.skip(f"{solver} is not installed")
    for seed in range(24):
        problem = THROUGHPUT_PROBLEMS[seed]
        workload, cluster = random_case(seed, max_nodes=6, max_cores=1)
        best = best_max_load(workload, cluster, problem)
        result = solve(workload, cluster, problem, method=f"milp:{solver}")
        found = math.inf if result.objective is None else result.objective
        assert found == pytest.approx(best, rel=1e-5, abs=1e-9), f"seed {seed}: {problem}"
        assert result.status == ("infeasible" if math.isinf(best) else "optimal")


@pytest.mark.parametrize(("name", "words"), [("nonesuch", "knows no"), ("cplex", "install")])
def test_a_solver_that_is_not_there(name: str, words: str) -> None:
    if name != "nonesuch" and pyo.SolverFactory(name).available(exception_flag=False):
        pytest.skip(f"{name} is installed")
    workload, cluster = random_case(0)
    with pytest.raises(InputError, match=words):
        solve(workload, cluster, method=f"milp:{name}")


@pytest.mark.parametrize("problem", THROUGHPUT_PROBLEMS[::5])
@pytest.mark.parametrize("ending", [".mps", ".lp"])
def test_a_model_file_has_the_optimum_of_the_task(
    tmp_path: Path, ending: str, problem: Throughput
) -> None:
    workload, cluster = random_case(9, max_nodes=6, max_cores=1)
    path = tmp_path / f"model{ending}"
    f = formulation(workload, cluster, problem)
    f.write(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.readModel(str(path))
    highs.run()
    best = best_max_load(workload, cluster, problem)
    found = highs.getInfo().objective_function_value * f.scale
    assert found == pytest.approx(best, rel=1e-5, abs=1e-9)


def test_a_model_file_with_another_ending_or_in_no_folder(tmp_path: Path) -> None:
    f = formulation(*random_case(9), Throughput())
    with pytest.raises(InputError, match=r"\.mps or \.lp"):
        f.write(tmp_path / "model.txt")
    with pytest.raises(InputError, match="cannot be written"):
        f.write(tmp_path / "nowhere" / "model.lp")


def test_infeasible_says_what_is_at_fault() -> None:
    result = solve(equal_units(4), accelerators_and_cpus(2, 0, 1.5), method="milp")
    assert result.status == "infeasible"
    assert "more than" in result.reason


def equal_units(count: int) -> Workload:
    """Units that take 1 each on an accelerator, 100 on a CPU, and a byte of memory."""
    return Workload(
        name="equal units",
        ids=tuple(range(count)),
        edges=np.array([(v, v + 1) for v in range(count - 1)]),
        times={"accelerator": np.ones(count), "cpu": np.full(count, 100.0)},
        memory_bytes=np.ones(count),
        transfer=np.full(count, 0.01),
    )


def test_sizes_beyond_what_the_solver_takes_are_no_entries() -> None:
    """A memory without limit, and units of 1e15 bytes: HiGHS refuses entries as large."""
    case = case_of("BIG 1e+15 all", 13)
    result = solve(
        case.workload, case.cluster, case.problem, method="milp", limits=Limits(nodes=50)
    )
    assert result.plan is not None
    assert result.objective == pytest.approx(case.optimum())


def test_a_first_plan_a_million_million_times_too_slow() -> None:
    """In a program stated for it, every good plan costs nothing up to rounding."""
    case = case_of("BIG 1e+12 cpu", 71)
    limits = Limits(nodes=100, seconds=60)
    result = solve(case.workload, case.cluster, case.problem, method="milp", limits=limits)
    assert result.status == "optimal"
    assert result.objective == pytest.approx(case.optimum())
