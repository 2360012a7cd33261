"""The program of a job's stages as a model: its optimum is that of all stages, tried."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import highspy
import pyomo.environ as pyo
import pytest

from stagecut import InputError, Layout
from stagecut.api.job import solve_job
from stagecut.api.job_formulation import JobFormulation, job_formulation
from stagecut.instances.job.problem import TrainingJob
from stagecut.solvers import Limits
from stagecut.solvers.core.other_solvers import SOLVERS, check_solver

EXACT = Limits(gap=1e-7, seconds=60)


def formulated(**fixed: int) -> tuple[JobFormulation, Layout]:
    job = TrainingJob(global_batch=64, sequence=4096, **fixed)  # type: ignore[arg-type]
    plan = solve_job("llama3.2-1b", "h100:8", job).plan
    assert plan is not None
    return job_formulation(plan), plan.layout


def every_stages(f: JobFormulation, layout: Layout) -> Iterator[tuple[Layout, float]]:
    """Yield all stages of a layout with the seconds that the estimate gives."""
    layers = f.costs.model.layers
    cuts = itertools.combinations(range(1, layers), layout.stages - 1)
    splits = [tuple(b - a for a, b in itertools.pairwise((0, *cut, layers))) for cut in cuts]
    tried = [
        replace(layout, stage_layers=split, recompute_layers=again)
        for split in splits
        for again in ([None] if f.builder.r is None else range(min(split) + 1))
    ]
    yield from zip(tried, f.costs.judge(tried).tolist(), strict=True)


@pytest.mark.parametrize("fixed", [{"pipeline": 2}, {"pipeline": 4, "microbatch": 1}])
def test_the_best_stages_are_those_of_brute_force(fixed: dict[str, int]) -> None:
    f, layout = formulated(**fixed)
    tried = list(every_stages(f, layout))
    free = f.solve(limits=EXACT)
    best = min(seconds for _, seconds in tried)
    assert free.seconds == pytest.approx(best, rel=1e-6)
    assert free.bound <= best * (1 + 1e-9)
    f.model.few = pyo.Constraint(expr=f.layers(0) + 2 * f.layers(1) <= 14)
    f.model.many = pyo.Constraint(expr=f.layers(1) >= 3)
    kept = [
        seconds
        for one, seconds in tried
        if one.stage_layers[0] + 2 * one.stage_layers[1] <= 14 and one.stage_layers[1] >= 3
    ]
    found = f.solve(limits=EXACT)
    if math.isinf(min(kept, default=math.inf)):
        assert found.layout is None
        return
    assert found.seconds == pytest.approx(min(kept), rel=1e-6)
    assert min(kept) * (1 - 1e-5) <= found.bound <= min(kept) * (1 + 1e-9)
    assert found.layout is not None
    assert found.layout.stage_layers[0] + 2 * found.layout.stage_layers[1] <= 14
    assert "under user constraints" in found.bound_origin


def test_a_fixed_variable_is_a_constraint_and_another_objective_is_refused() -> None:
    f, _ = formulated(pipeline=2)
    assert "under user constraints" not in f.solve(limits=EXACT).bound_origin
    f.model.n[0, 0].fix(5)
    found = f.solve(limits=EXACT)
    assert found.layout is not None
    assert found.layout.stage_layers[0] == 5
    assert "under user constraints" in found.bound_origin
    f.model.objective.deactivate()
    f.model.other = pyo.Objective(expr=f.layers(0))
    with pytest.raises(InputError, match="its objective is not the job's"):
        f.solve()


def test_every_solver_finds_the_same_stages_and_reads_the_file(tmp_path: Path) -> None:
    f, _ = formulated(pipeline=4)
    first = f.solve(limits=EXACT)
    for name in SOLVERS:
        with suppress(InputError):
            check_solver(name)
            found = f.solve(name, limits=EXACT)
            assert found.seconds == pytest.approx(first.seconds, rel=1e-6), name
            assert found.bound <= first.seconds * (1 + 1e-9), name
    f.write(tmp_path / "stages.mps")
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.readModel(str(tmp_path / "stages.mps"))
    highs.run()
    value = highs.getInfo().objective_function_value * f.scale
    assert value == pytest.approx(first.seconds, rel=1e-4)


def test_rows_that_contradict_have_no_stages_and_a_plan_without_pipeline_no_program() -> None:
    f, _ = formulated(pipeline=2)
    f.model.none = pyo.Constraint(expr=f.layers(0) + f.layers(1) <= 3)
    found = f.solve(limits=EXACT)
    assert (found.layout, found.status) == (None, "infeasible")
    with pytest.raises(InputError, match="without a pipeline"):
        formulated(pipeline=1)
