"""Shardings: every exact method finds what trying everything finds, and verifies."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute_sharding import cases, least_cost

from stagecut import (
    DeviceMesh,
    InputError,
    Limits,
    Link,
    Sharding,
    VerificationError,
    evaluate,
    load,
    load_plan,
    save,
    solve,
    verify,
)
from stagecut.formulations.sharding.conversions import conversions
from stagecut.instances import ShardingObjective, Tensor, TensorSharding
from stagecut.instances.model.tensor_program import parse_axis
from stagecut.runtime.verify.sharding import ShardingReport, path
from stagecut.solvers import METHODS

LIMITS = Limits(seconds=120, nodes=5000)


@pytest.mark.parametrize("chunk", range(8))
def test_elimination_and_programs_find_the_optimum(chunk: int) -> None:
    met = cases(30 * chunk, 30, stream=18)
    assert len(met) > 10
    for workload, problem, optimum in met:
        for method in ("elimination", "milp", "auto"):
            result = solve(workload, problem=problem, method=method, limits=LIMITS)
            assert result.plan is not None, result.notes
            assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-9), method
            assert result.status == "optimal", (method, result.bound, result.notes)
            assert result.bound <= optimum * (1 + 1e-6) + 1e-9
            verify(workload, result.plan)


def test_the_compact_program_states_the_same() -> None:
    for workload, problem, optimum in cases(1000, 25, stream=18):
        result = solve(workload, problem=problem, method="milp-compact", limits=LIMITS)
        assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("chunk", range(4))
def test_with_a_memory_that_binds(chunk: int) -> None:
    words = set()
    for workload, problem, _ in cases(2000 + 20 * chunk, 20, stream=18):
        free = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
        assert free is not None
        report = evaluate(workload, free.cluster, problem, free.solution)
        tight = replace(problem, memory_bytes=0.8 * report.memory_bytes)  # type: ignore[attr-defined]
        optimum = least_cost(workload, tight)
        assert optimum is not None
        for method in ("milp", "auto"):
            result = solve(workload, problem=tight, method=method, limits=LIMITS)
            words.add(result.status)
            if math.isinf(optimum):
                assert result.status == "infeasible", (method, result.notes)
                continue
            assert result.plan is not None, (method, result.notes)
            assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-9), method
            assert result.status == "optimal"
            verify(workload, result.plan)
    assert words == {"optimal", "infeasible"}


def test_no_method_is_better_than_the_optimum_and_each_has_a_plan() -> None:
    for workload, problem, optimum in cases(3000, 20, stream=18):
        for method in METHODS["sharding"]:
            if method.startswith("milp"):
                continue
            result = solve(workload, problem=problem, method=method, limits=LIMITS)
            assert result.objective is not None, method
            assert result.objective >= optimum * (1 - 1e-9) - 1e-9
            assert not any("defect" in note for note in result.notes)


def test_every_mutated_plan_is_refused() -> None:
    refused = 0
    for workload, problem, optimum in cases(4000, 30, stream=18):
        plan = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
        assert plan is not None
        program = workload.program
        assert program is not None
        chosen = plan.solution.signature  # type: ignore[union-attr]
        for v, operator in enumerate(program.operators):
            for d in range(chosen.shape[1]):
                for k in range(-1, len(operator.signatures) + 1):
                    if k == chosen[v, d]:
                        continue
                    changed = chosen.copy()
                    changed[v, d] = k
                    mutated = replace(plan, solution=TensorSharding(changed))
                    report = evaluate(workload, plan.cluster, problem, mutated.solution)
                    if report.objective == plan.objective and not report.violations:
                        continue  # another optimum
                    with pytest.raises(VerificationError):
                        verify(workload, mutated)
                    refused += 1
        for change in (
            {"objective": plan.objective * 0.9 - 1},
            {"bound": plan.objective * 1.1 + 1},
            {"solution": TensorSharding(chosen[:-1])},
            {"solution": TensorSharding(np.concatenate([chosen, chosen], axis=1))},
        ):
            with pytest.raises(VerificationError):
                verify(workload, replace(plan, **change))
        least = min(problem.mesh.shape)
        room = replace(problem, memory_bytes=0.0)
        report = evaluate(workload, plan.cluster, room, plan.solution)
        held = report.parameter_bytes + report.activation_bytes  # type: ignore[attr-defined]
        assert bool(report.violations) == (held > 0), least
        assert optimum == pytest.approx(plan.objective, rel=1e-6, abs=1e-9)
    assert refused > 500


def test_what_is_fixed_stays_and_what_cannot_be_is_refused() -> None:
    for workload, problem, optimum in cases(5000, 20, stream=18):
        program = workload.program
        assert program is not None
        last = program.operators[-1]
        copied = "x".join("B" * len(problem.mesh.shape))
        how = ",".join([copied] * max(1, len(last.inputs)))
        if last.role == "input":
            continue
        fixed = replace(problem, fixed=((last.name, how),))
        plan = solve(workload, problem=fixed, method="auto", limits=LIMITS).plan
        assert plan is not None
        assert plan.objective >= optimum * (1 - 1e-9)
        verify(workload, plan)
        for node, text in ((last.name, "S9"), ("nonsense", "B"), (last.name, "B->B->B")):
            with pytest.raises(InputError, match="fix: "):
                solve(workload, problem=replace(problem, fixed=((node, text),)), limits=LIMITS)


def test_a_plan_file_keeps_the_sharding(tmp_path: Path) -> None:
    for workload, problem, _ in cases(6000, 10, stream=18):
        plan = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
        assert plan is not None
        save(workload, tmp_path / "program.json")
        again = load(tmp_path / "program.json")
        assert again.fingerprint == workload.fingerprint
        save(plan, tmp_path / "plan.json", workload)
        back = load_plan(tmp_path / "plan.json", again)
        assert back.problem == problem
        assert (back.solution.signature == plan.solution.signature).all()  # type: ignore[union-attr]
        verify(again, back)


def test_the_timeline_of_a_sharding_ends_at_its_objective() -> None:
    for workload, problem, _ in cases(7000, 20, stream=18):
        if problem.objective == "distpar":
            continue
        plan = solve(workload, problem=problem, method="data-parallel", limits=LIMITS).plan
        assert plan is not None
        report = evaluate(workload, plan.cluster, problem, plan.solution)
        assert isinstance(report, ShardingReport)
        timeline = report.timeline
        ends = [0.0, *(event.end for event in timeline.events)]
        starts = [event.start for event in timeline.events]
        assert starts == pytest.approx(ends[:-1])


@pytest.mark.parametrize(("shape", "dtype"), [((6,), "float32"), ((6, 12), "bfloat16")])
def test_conversions_along_one_axis_are_those_of_the_table(
    shape: tuple[int, ...], dtype: str
) -> None:
    tensor = Tensor("t", shape, dtype)
    size = tensor.size_bytes
    for p in (2, 3):
        mesh = DeviceMesh((p,), (Link(0.25, 8.0),))
        table = {
            ("S0", "B"): ((p - 1) * size, p - 1),
            ("P", "S0"): ((p - 1) * size, p - 1),
            ("P", "B"): (2 * (p - 1) * size, 2 * (p - 1)),
            ("B", "S0"): (0, 0),
            ("B", "P"): (0, 0),
            ("S0", "P"): (0, 0),
            ("S0", "S0"): (0, 0),
        }
        if len(shape) > 1:
            table["S0", "S1"] = ((p - 1) * size / p, p - 1)
        for (before, after), (moved, rounds) in table.items():
            seconds = rounds * 0.25 + moved / p / 8.0
            for objective, wanted in (("time", seconds), ("distpar", moved)):
                problem = Sharding(mesh, objective)
                steps = path(tensor, (before,), (after,), problem)
                said = sum(s.seconds if objective == "time" else s.bytes for s in steps)
                assert said == pytest.approx(wanted), (before, after, objective)
                known = conversions(shape, size, mesh, ShardingObjective(objective), 1.0)
                at = [known.number[(parse_axis(one),)] for one in (before, after)]
                assert known.cost[at[0], at[1]] == pytest.approx(wanted)
