"""Formulations as models: what is added to them is kept, and the optimum is that of brute force."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from constrained_cases import EXACT, MAKERS, check_against_brute_force

import stagecut
from stagecut import InputError, Latency, Limits, PipelineJob, Throughput
from stagecut.api import formulation as formulation_module
from stagecut.formulations.registry import FORMULATIONS


@pytest.mark.parametrize("problem", MAKERS)
def test_an_added_constraint_gives_the_best_of_all_solutions_that_keep_it(problem: str) -> None:
    found = [check_against_brute_force(problem, seed) for seed in range(9)]
    assert found.count(True) >= 2


def unet(name: str | None = None, split: str = "contiguous") -> stagecut.Formulation:
    cluster = stagecut.accelerators_and_cpus(3, cpus=0)
    return stagecut.formulation("unet", cluster, Throughput(split), name)


def test_another_objective_is_that_of_the_model_and_the_plan_is_judged_by_definition() -> None:
    f = unet(split="noncontiguous")
    first = f.solve(limits=Limits(gap=0.2))
    m = f.model
    m.within = pyo.Constraint(expr=m.max_load.expr <= 1.05 * first.objective / f.scale)
    m.max_load.deactivate()
    m.second = pyo.Objective(expr=f.count("accelerator 0"))
    second = f.solve(limits=Limits(gap=0))
    assert second.plan is not None
    assert second.objective <= 1.05 * first.objective * (1 + 1e-6)
    assert math.isinf(second.bound)
    few = int((second.plan.placement == 0).sum())
    assert pyo.value(m.second) == pytest.approx(few)
    assert any(note.startswith(f"objective second: {few}, at least {few}") for note in second.notes)
    m.second.deactivate()
    m.third = pyo.Objective(expr=-f.count("accelerator 1"))  # below 0
    third = f.solve(limits=Limits(gap=0))
    assert third.plan is not None
    most = int((third.plan.placement == 1).sum())
    assert most >= int((second.plan.placement == 1).sum())
    assert third.status == "optimal"
    assert pyo.value(m.third) == pytest.approx(-most)


def test_the_sum_of_loads_in_place_of_the_largest() -> None:
    f = unet(split="noncontiguous")
    m = f.model
    m.max_load.deactivate()
    m.total = pyo.Objective(expr=sum(row.body + m.T[0] for row in m.under_max_load.values()))
    result = f.solve(limits=Limits(gap=0))
    assert result.plan is not None
    task = f.task
    report = stagecut.evaluate(task.workload, task.cluster, task.problem, result.plan.solution)
    assert pyo.value(m.total) * f.scale == pytest.approx(sum(d.load for d in report.devices))
    assert len(set(result.plan.placement.tolist())) == 1  # without transfers


def test_a_start_and_values_are_read_back() -> None:
    f = unet("by-device")
    plan = stagecut.solve("unet", f.task.cluster, f.task.problem, method="dp").plan
    assert plan is not None
    f.start(plan)
    assert np.array_equal(f.read().device, plan.placement)
    result = f.solve(limits=Limits(gap=0.01))
    assert result.objective == pytest.approx(plan.objective)
    assert not any("as its start" in note for note in result.notes)


def test_placement_rules_are_kept_beside_constraints() -> None:
    first = str(stagecut.load("unet").ids[0])
    rules = stagecut.PlacementRules(pins=((first, 2),))
    cluster = stagecut.accelerators_and_cpus(3, cpus=0)
    problem = Throughput("noncontiguous", placement_rules=rules)
    f = stagecut.formulation("unet", cluster, problem)
    f.model.few = pyo.Constraint(expr=f.count(f.places[0]) <= 3)
    result = f.solve(limits=Limits(gap=0.3))
    assert result.plan is not None
    assert result.plan.placement[0] == 2


def test_what_describes_a_formulation_names_its_equations() -> None:
    f = unet()
    table = f.describe()
    assert table.loc["placed_once", "equation"].startswith("(1) Σ_d x_{v,d} = 1")
    assert int(table.loc["placed_once", "size"]) == f.task.workload.n
    f.model.added = pyo.Constraint(expr=f.count("place 0") <= 3, doc="few at first")
    assert f.describe().loc["added", "equation"] == "few at first"
    assert "model=changed" in repr(f)
    assert "(1)" in f.statement


def test_a_row_that_is_changed_in_place_counts_as_a_constraint_of_the_user() -> None:
    f = unet()
    row = f.model.placed_once[0]
    row.set_value(2 * row.body == 2 * row.upper)
    assert "model=changed" in repr(f)
    assert "under user constraints" in f.solve(limits=Limits(gap=0.3)).bound_origin


def test_a_changed_model_is_relaxed_and_written(tmp_path: Path) -> None:
    f = unet()
    free = f.relax().bound
    f.model.none = pyo.Constraint(expr=f.count("place 1") == 0)
    assert f.relax().bound > free
    f.write(tmp_path / "model.lp")
    assert "none" in (tmp_path / "model.lp").read_text()


def test_what_cannot_be_solved_is_said() -> None:
    f = unet()
    m = f.model
    with pytest.raises(InputError, match="no thing 'nothing'"):
        f.at("nothing", "place 0")
    with pytest.raises(InputError, match="no place 'nowhere'"):
        f.count("nowhere")
    m.other = pyo.Objective(expr=f.count("place 0"))
    with pytest.raises(InputError, match="2 active objectives"):
        f.solve()
    m.max_load.deactivate()
    m.other.sense = pyo.maximize
    with pytest.raises(InputError, match="maximised"):
        f.solve()
    m.other.deactivate()
    m.free = pyo.Var()
    m.endless = pyo.Objective(expr=m.free)
    m.used = pyo.Constraint(expr=m.free <= f.count("place 0"))
    with pytest.raises(InputError, match="endless has no lower bound"):
        f.solve()
    m.endless.deactivate()
    m.max_load.activate()
    m.all = pyo.Constraint(expr=f.count("place 0") >= 3)
    m.no = pyo.Constraint(expr=f.count("place 0") <= 2)
    result = f.solve()
    assert (result.status, result.plan) == ("infeasible", None)
    assert result.reason == "nothing keeps all constraints of the model"
    assert f.conflict() == ("all", "no")
    m.no.deactivate()
    assert f.conflict() == ()
    with pytest.raises(InputError, match="no 'nonsense' for throughput; use one of compact"):
        unet("nonsense")


def test_programs_start_where_they_end() -> None:
    """`start` is the inverse of `read`."""
    mapping = stagecut.DeviceMapping(
        stagecut.topology("islands:2x2"), 2, 2, microbatches=4, collective="ring"
    )
    cases: list[tuple[Any, ...]] = [
        ("unet", stagecut.accelerators_and_cpus(2, cpus=1), Latency(1)),
        ("unet-training", stagecut.accelerators_and_cpus(2, cpus=0), PipelineJob(2, "1f1b")),
        ("semantic-fpn-training", None, mapping),
    ]
    for workload, cluster, problem in cases:
        plan = stagecut.solve(workload, cluster, problem, limits=Limits(gap=0.2)).plan
        assert plan is not None
        for name in FORMULATIONS[problem.name]:
            f = stagecut.formulation(workload, cluster, problem, name)
            f.start(plan)
            task, read = f.task, f.read()
            value = stagecut.evaluate(task.workload, task.cluster, problem, read).objective
            assert value == pytest.approx(plan.objective), name


def test_constraints_and_a_check_of_solutions_hold() -> None:
    cluster, problem = stagecut.accelerators_and_cpus(3, cpus=0), Throughput("noncontiguous")
    f = stagecut.formulation("unet", cluster, problem, "by-device")
    f.model.few = pyo.Constraint(expr=f.count("accelerator 1") <= 2)
    result = f.solve(limits=Limits(gap=0.3, seconds=300))
    assert result.plan is not None
    assert int((result.plan.placement == 1).sum()) <= 2
    assert result.bound_origin.startswith("by-device program under user constraints")
    assert "under user constraints" in str(result.plan.certificate["origin"])

    checked = f.solve(
        limits=Limits(gap=0.3, seconds=3), keeps=lambda split: not (split.device == 2).any()
    )
    assert checked.plan is None or not (checked.plan.placement == 2).any()


def test_values_that_miss_an_added_constraint_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A solver that loses a row, as one with a wrong presolve does, is not believed."""
    f = unet(split="noncontiguous")
    f.model.few = pyo.Constraint(expr=f.count("accelerator 0") <= 1)
    original = formulation_module.compile_model

    def without(model: pyo.ConcreteModel) -> Any:
        model.few.deactivate()
        try:
            return original(model)
        finally:
            model.few.activate()

    monkeypatch.setattr(formulation_module, "compile_model", without)
    result = f.solve(limits=Limits(gap=0.3, seconds=5))
    assert result.plan is None or int((result.plan.placement == 0).sum()) <= 1


def test_alternatives_are_the_best_solutions_of_brute_force() -> None:
    found = 0
    for seed in range(6):
        case = MAKERS["throughput"](seed)
        assert case is not None
        values = sorted(value for _, value in case.tried if math.isfinite(value))
        if not min(values, default=0) > 0:
            continue
        found += 1
        near = [value for value in values if value <= 1.25 * values[0] * (1 + 1e-9)]
        f = case.formulation()
        plans = f.alternatives(4, within=0.25, limits=EXACT)
        assert [plan.objective for plan in plans] == pytest.approx(near[:4], rel=1e-6), seed
        assert len({tuple(plan.placement.tolist()) for plan in plans}) == len(plans)
        assert "model=as stated" in repr(f)
    assert found >= 2


def test_rows_that_contradict_each_other_are_a_least_set() -> None:
    f = unet("by-device")
    m = f.model
    m.half = pyo.Constraint(expr=f.count("accelerator 0") >= 12)
    m.rest = pyo.Constraint(expr=f.count("accelerator 1") + f.count("accelerator 2") >= 12)
    found = f.conflict()
    assert {"half", "rest"} <= set(found)
    # each of the 23 nodes is somewhere once: at most 23 in all
    assert sum(name.startswith("placed_once") for name in found) == 23
    assert len(found) == 25


def test_highs_is_asked_again_where_its_solution_misses_a_tolerance_by_a_hair() -> None:
    """It ended so without a start, and knew no bound any more; without presolve it does."""
    assert check_against_brute_force("latency", 68)
