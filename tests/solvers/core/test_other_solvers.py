"""Solvers other than HiGHS, where they are installed: answers, limits, licences, all problems."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from brute import best_max_load
from brute_sharding import random_problem, random_program
from cases import random_case
from constrained_cases import MAKERS, check_against_brute_force
from project import ROOT
from training_cases import random_training_case

import stagecut
from stagecut import DeviceMapping, InputError, Latency, Limits, Throughput
from stagecut.instances import Problem, Workload
from stagecut.solvers import METHODS
from stagecut.solvers.core.compiled_model import compile_model
from stagecut.solvers.core.highs import Outcome
from stagecut.solvers.core.other_solvers import SOLVERS, check_solver, run_other
from stagecut.solvers.core.search import Search


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest) -> str:
    """The name of a solver that is installed."""
    name: str = request.param
    try:
        check_solver(name)
    except InputError as error:
        pytest.skip(str(error))
    return name


def loads(jobs: int, machines: int, seed: int = 1) -> pyo.ConcreteModel:
    """Jobs on machines, at the least greatest load: much work for branch and bound."""
    sizes = np.random.default_rng(seed).integers(100, 999, jobs).tolist()
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(jobs), range(machines), domain=pyo.Binary)
    m.T = pyo.Var(bounds=(0, None))
    m.once = pyo.Constraint(
        range(jobs), rule=lambda m, i: sum(m.x[i, d] for d in range(machines)) == 1
    )
    m.busy = pyo.Constraint(
        range(machines),
        rule=lambda m, d: sum(sizes[i] * m.x[i, d] for i in range(jobs)) <= m.T,
    )
    m.most = pyo.Objective(expr=m.T)
    return m


def run(
    solver: str, model: pyo.ConcreteModel, options: dict[str, int] | None = None, **limits: float
) -> Outcome:
    compiled = compile_model(model)
    assert compiled.linear is not None
    search: Search[object] = Search(Limits(**limits), lambda _: math.inf)  # type: ignore[arg-type]
    return run_other(solver, compiled, compiled.linear, search, options=options)


def test_an_optimum_is_an_answer_with_its_bound(solver: str) -> None:
    outcome = run(solver, loads(6, 2))
    assert (outcome.status, outcome.limit) == ("optimal", "none")
    sizes = np.random.default_rng(1).integers(100, 999, 6)
    splits = [sizes[[i for i in range(6) if code >> i & 1]].sum() for code in range(64)]
    least = min(max(part, sizes.sum() - part) for part in splits)
    assert outcome.objective == pytest.approx(least)
    assert least * (1 - 1e-6) <= outcome.bound <= least * (1 + 1e-6)


def test_the_gap_asked_for_ends_a_solve_as_an_answer(solver: str) -> None:
    outcome = run(solver, loads(12, 3), gap=0.5, seconds=30)
    assert (outcome.status, outcome.limit) == ("optimal", "none")
    assert outcome.bound >= 0.5 * outcome.objective * (1 - 1e-9)


def test_a_time_limit_is_kept_and_leaves_the_incumbent(solver: str) -> None:
    outcome = run(solver, loads(40, 7), seconds=1.5)
    if outcome.status == "optimal":
        pytest.skip(f"{solver} needs less time")
    assert outcome.limit == "time"
    if outcome.x is not None:
        assert outcome.bound < outcome.objective < math.inf


#: Options that end a solve after a node, and after a solution.
ONE_NODE = {
    "gurobi": "NodeLimit", "cplex": "mip_limits_nodes", "scip": "limits/nodes", "cbc": "maxNodes",
    "copt": "NodeLimit", "xpress": "maxnode",
}  # fmt: skip
ONE_SOLUTION = {
    "gurobi": "SolutionLimit", "cplex": "mip_limits_solutions", "scip": "limits/solutions",
    "cbc": "maxSolutions", "xpress": "maxmipsol",
}  # fmt: skip


@pytest.mark.parametrize("limit", ["nodes", "stopped"])
def test_a_limit_of_the_solver_leaves_the_incumbent(solver: str, limit: str) -> None:
    option = (ONE_NODE if limit == "nodes" else ONE_SOLUTION).get(solver)
    if option is None:
        pytest.skip(f"{solver} has no such limit")
    model = loads(25, 5)
    outcome = run(solver, model, {option: 1}, seconds=30, gap=1e-9)
    assert outcome.status == "feasible"
    assert outcome.limit in ("nodes", "stopped")
    assert outcome.x is not None
    assert outcome.bound < outcome.objective < math.inf


def test_a_long_log_of_scip_does_not_block_it() -> None:
    """It waited for ever once its log was longer than a pipe holds, 64 KiB."""
    with suppress(InputError):
        check_solver("scip")
        outcome = run("scip", loads(40, 7), {"display/freq": 1, "display/headerfreq": 1}, seconds=4)
        assert outcome.limit == "time"
        return
    pytest.skip("scip is not installed")


def test_numbers_beyond_tolerances_make_no_false_claim(solver: str) -> None:
    """Transfers of 1e10 beside loads of about 1: what solvers say of such is often wrong."""
    for seed in range(6):
        workload, cluster = random_case(seed, max_nodes=5, max_cores=1)
        dear = np.where(np.random.default_rng(seed).random(workload.n) < 0.4, 1e10, 1.0)
        workload = replace(workload, transfer=workload.transfer * dear)
        best = best_max_load(workload, cluster, Throughput())
        try:
            f = stagecut.formulation(workload, cluster, Throughput())
        except stagecut.InfeasibleError:
            assert math.isinf(best)
            continue
        result = f.solve(solver, limits=Limits(gap=0.0, seconds=30))
        assert result.bound <= best * (1 + 1e-9), f"seed {seed}: {result}, best {best}"
        assert result.status != "infeasible" or math.isinf(best), f"seed {seed}"
        if result.plan is not None:
            assert result.objective >= best * (1 - 1e-9), f"seed {seed}: {result}, best {best}"


def test_no_solution_is_told_from_one_that_is_unbounded(solver: str) -> None:
    model = loads(4, 2)
    model.no = pyo.Constraint(expr=model.x[0, 0] + model.x[0, 1] >= 2)
    assert run(solver, model).status == "infeasible"
    endless = loads(4, 2)
    endless.more = pyo.Var()
    endless.tied = pyo.Constraint(expr=endless.more <= 1000 * endless.T)
    endless.most.deactivate()
    endless.least = pyo.Objective(expr=endless.T - endless.more)
    with pytest.raises(stagecut.StagecutError, match=f"solver {solver}"):
        run(solver, endless)


def test_a_licence_that_covers_less_is_one_line(solver: str) -> None:
    if solver not in ("gurobi", "cplex", "xpress", "copt"):
        pytest.skip(f"{solver} needs no licence")
    with suppress(stagecut.StagecutError):
        run(solver, loads(400, 20), seconds=1.0)
        pytest.skip(f"{solver} has a licence")
    with pytest.raises(stagecut.StagecutError, match=r"its licence does not cover .*\Z"):
        run(solver, loads(400, 20), seconds=1.0)


def test_what_a_solve_fixes_it_frees_again(solver: str) -> None:
    model = loads(5, 2)
    model.x[0, 1].setub(0)
    outcome = run(solver, model)
    assert outcome.status == "optimal"
    assert not any(var.fixed for var in model.x.values())


@pytest.mark.parametrize("problem", MAKERS)
def test_an_added_constraint_gives_the_best_of_all_solutions(solver: str, problem: str) -> None:
    found = [check_against_brute_force(problem, seed, solver) for seed in range(4)]
    assert any(found)


def cases() -> list[tuple[Workload, object, Problem]]:
    """A small case of each problem that `MAKERS` leaves out."""
    training = random_training_case(3, max_nodes=4, max_devices=3)
    rng = np.random.default_rng(2)
    mapping = DeviceMapping(
        stagecut.topology("islands:2x2"), 2, 2, microbatches=4, collective="ring"
    )
    return [
        training,
        (random_program(rng, most=4), None, random_problem(rng)),
        (stagecut.load("semantic-fpn-training"), None, mapping),
    ]


@pytest.mark.parametrize("case", range(3))
def test_every_program_of_every_problem_is_solved_as_by_highs(solver: str, case: int) -> None:
    workload, cluster, problem = cases()[case]
    limits = Limits(gap=1e-6, seconds=60)
    for method, known in METHODS[problem.name].items():
        if "solver" in known.reads and method != "auto":
            both = [
                stagecut.solve(workload, cluster, problem, method=f"{method}:{name}", limits=limits)
                for name in ("highs", solver)
            ]
            failed = [note for note in both[1].notes if " failed, and proves" in note]
            assert all("licence does not cover" in note for note in failed), failed
            if not failed:
                assert both[0].objective == pytest.approx(both[1].objective, rel=1e-6), method


def test_every_integer_program_of_the_package_takes_a_solver() -> None:
    for problem, methods in METHODS.items():
        readers = [name for name, known in methods.items() if "solver" in known.reads]
        assert any(name.startswith(("milp", "joint")) for name in readers), problem


def test_the_first_model_of_the_page_takes_six_lines() -> None:
    page = (ROOT / "docs" / "formulations.md").read_text()
    (lines,) = re.findall(r"```python\n((?:(?!```).)*solve\(\"scip\"\)\)\n)```", page, re.DOTALL)
    assert "\npip install . pyscipopt\n```" in page
    assert len(list(filter(None, lines.splitlines()))) == 5
    try:
        check_solver("scip")
    except InputError:
        lines = lines.replace("scip", "highs")
    names: dict[str, Any] = {}
    exec(lines, names)
    f = names["f"]
    assert sum(pyo.value(f.at(thing, f.places[0])) > 0.5 for thing in f.things) <= 8


def test_a_solver_that_is_not_there_says_how_to_get_it() -> None:
    for name in SOLVERS:
        with suppress(InputError):
            check_solver(name)
            continue
        with pytest.raises(InputError, match=SOLVERS[name].install):
            check_solver(name)
    with pytest.raises(InputError, match="knows no 'nonesuch'; use highs, gurobi"):
        check_solver("nonesuch")


@pytest.mark.slow
@pytest.mark.parametrize("problem", MAKERS)
def test_many_cases_have_the_optimum_of_brute_force(solver: str, problem: str) -> None:
    found = [check_against_brute_force(problem, seed, solver) for seed in range(300)]
    assert found.count(True) >= 100


def test_command_and_function_name_the_same_solvers() -> None:
    workload, cluster = random_case(1, max_nodes=4)
    for problem in (Throughput(), Latency()):
        with pytest.raises(InputError, match="knows no 'nonesuch'"):
            stagecut.solve(workload, cluster, problem, method="milp:nonesuch")
