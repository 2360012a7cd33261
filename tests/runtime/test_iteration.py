"""Plans of iterations: the simulator gives their value, and memory is what training keeps."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from brute_iteration import SCHEDULES, training_case
from cases import random_case
from forgery import changed, fate

from stagecut import (
    InputError,
    Limits,
    PipelineJob,
    PlacementRules,
    Plan,
    VerificationError,
    Workload,
    accelerators_and_cpus,
    evaluate,
    simulate,
    solve,
    verify,
)
from stagecut.instances import PipelinePlacement
from stagecut.instances.formats.files import dumps, load_plan, save

LIMITS = Limits(seconds=120)
MIB = 2.0**20


def planned(seed: int) -> tuple[Workload, Plan] | None:
    """A random case with the plan that a method makes of it; None where there is none."""
    rng = np.random.default_rng([seed, 13])
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    workload, cluster = training_case(rng, tight=seed % 3 == 0)
    if seed % 2 and schedule != "interleaved":
        workload, cluster = random_case(seed, max_nodes=6, max_kinds=2)
    contiguous = schedule == "interleaved" or rng.random() < 0.6
    problem = PipelineJob(
        int(rng.integers(1, 6)),
        schedule,
        "contiguous" if contiguous else "noncontiguous",
        relayed=contiguous and bool(rng.random() < 0.3),
        weight_share=float(rng.choice([0.5, 0.3])),
        overlap=bool(rng.random() < 0.3),
    )
    plan = solve(workload, cluster, problem, method="auto", limits=replace(LIMITS, nodes=20)).plan
    return None if plan is None else (workload, plan)


@pytest.fixture(scope="module")
def plans() -> list[tuple[Workload, Plan]]:
    """Plans of all schedules."""
    made = [plan for plan in map(planned, range(10)) if plan is not None]
    schedules = {plan.problem.schedule for _, plan in made}  # type: ignore[union-attr]
    assert schedules == set(SCHEDULES)
    return made


def test_simulate_gives_the_objective(plans: list[tuple[Workload, Plan]]) -> None:
    for workload, plan in plans:
        simulation = simulate(workload, plan)  # schedule and microbatches are the plan's
        report = verify(workload, plan)
        assert simulation.makespan == pytest.approx(plan.objective, rel=1e-9)
        assert report.objective == plan.objective
        for memory, device in zip(simulation.memory, report.devices, strict=True):
            assert memory.peak == device.memory_bytes <= memory.capacity


def test_plans_come_back_from_their_files(
    plans: list[tuple[Workload, Plan]], tmp_path: Path
) -> None:
    for workload, plan in plans:
        save(plan, tmp_path / "plan.json", workload)
        back = load_plan(tmp_path / "plan.json", workload)
        assert isinstance(back.solution, PipelinePlacement)
        assert isinstance(plan.solution, PipelinePlacement)
        assert back.solution.devices == plan.solution.devices
        assert back.solution.stage.tolist() == plan.solution.stage.tolist()
        assert back.problem == plan.problem
        for field in fields(Plan):
            if field.name not in ("solution", "certificate"):
                assert getattr(back, field.name) == getattr(plan, field.name), field.name
        assert dumps(back, workload) == dumps(plan, workload)
        verify(workload, back)


def test_changed_plans_are_refused_or_still_true(
    plans: list[tuple[Workload, Plan]], tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    for k in range(200):
        rng = random.Random(f"iteration {k}")
        workload, plan = plans[k % len(plans)]
        seen[fate(workload, changed(workload, plan, rng), tmp_path)] += 1
    assert seen["refused"] > 120
    assert not seen["defect"]


def test_the_stages_of_a_file_must_be_those_of_the_workload(tmp_path: Path) -> None:
    workload = column()
    plan = solve(workload, accelerators_and_cpus(2), PipelineJob(4)).plan
    assert plan is not None
    save(plan, tmp_path / "plan.json", workload)
    document = json.loads((tmp_path / "plan.json").read_text())
    document["solution"]["stages"][0]["device"] = 7
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="device 7"):
        load_plan(tmp_path / "plan.json", workload)


def column(sizes: tuple[float, ...] = (4.0, 4.0, 4.0)) -> Workload:
    """Three layers, forward and backward, whose memory is that of training with Adam.

    Weights w, optimizer state 2 w, and activations of 3 w a microbatch; gradients w of backward
    nodes, whose activations count for nothing.
    """
    weights, n = np.array(sizes) * MIB, len(sizes)
    activation = np.concatenate((3 * weights, weights))
    own = np.concatenate((3 * weights, weights))
    edges = [(v, v + 1) for v in range(2 * n - 1)]
    return Workload(
        name="three layers",
        ids=tuple(range(2 * n)),
        edges=np.array(edges),
        times={"accelerator": np.repeat([1.0, 2.0], n)},
        memory_bytes=own + np.concatenate((3 * weights, np.zeros(n))),
        transfer=np.zeros(2 * n),
        backward=np.arange(2 * n) >= n,
        colours=np.concatenate((np.arange(n), np.arange(n)[::-1])),
        extra={
            "activation_bytes": activation,
            "weight_bytes": np.concatenate((weights, np.zeros(n))),
        },
    )


def peaks(problem: PipelineJob, stage: list[int], devices: tuple[int, ...]) -> list[float]:
    """Return the peak memory of the devices in MiB."""
    workload, cluster = column(), accelerators_and_cpus(3)
    both = np.array(stage + stage[::-1])
    report = evaluate(workload, cluster, problem, PipelinePlacement(both, devices))
    assert not report.violations
    return [device.memory_bytes / MIB for device in report.devices]


def test_memory_is_weights_gradients_optimizer_state_and_activations_in_flight() -> None:
    """4 + 4 + 8 MiB for each layer, and 12 for each microbatch in flight."""
    three = [0, 1, 2], (0, 1, 2)
    assert peaks(PipelineJob(8), *three) == [16 + 3 * 12, 16 + 2 * 12, 16 + 12]
    assert peaks(PipelineJob(8, "gpipe"), *three) == [16 + 8 * 12] * 3
    assert peaks(PipelineJob(2), *three) == [16 + 2 * 12, 16 + 2 * 12, 16 + 12]
    assert peaks(PipelineJob(8), [0, 0, 1], (0, 1))[:2] == [2 * (16 + 2 * 12), 16 + 12]
    # W runs P − 1 rounds after its forward pass, so activations are held so long everywhere
    assert peaks(PipelineJob(8, "zb-h1"), *three) == [16 + 3 * 12] * 3
    assert peaks(PipelineJob(8, "zb-h2"), *three) == [16 + 5 * 12] * 3


def test_memory_of_interleaved_chunks_is_counted_together() -> None:
    """Two stages on one device: four microbatches' forward passes, of which each holds its own."""
    workload = column((4.0, 4.0))
    problem = PipelineJob(4, "interleaved")
    report = evaluate(
        workload,
        accelerators_and_cpus(1),
        problem,
        PipelinePlacement(np.array([0, 1, 1, 0]), (0, 0)),
    )
    assert not report.violations
    (device,) = report.devices
    assert device.memory_bytes == (2 * 16 + 2 * 12) * MIB


def test_a_plan_that_does_not_fit_is_refused_with_the_bytes_that_are_missing() -> None:
    workload, stages = column(), PipelinePlacement(np.array([0, 1, 2, 2, 1, 0]), (0, 1, 2))
    for room, fits in ((52, True), (51, False)):
        cluster = accelerators_and_cpus(3, memory_bytes=room * MIB)
        report = evaluate(workload, cluster, PipelineJob(8), stages)
        assert (not report.violations) == fits
    result = solve(workload, accelerators_and_cpus(3, memory_bytes=51 * MIB), PipelineJob(8))
    assert result.plan is None  # one stage less holds more still
    assert solve(workload, accelerators_and_cpus(3, memory_bytes=52 * MIB), PipelineJob(8)).plan


def test_placements_that_are_no_pipeline_are_refused() -> None:
    workload, cluster = column(), accelerators_and_cpus(3)

    def said(problem: PipelineJob, stage: list[int], devices: tuple[int, ...]) -> str:
        report = evaluate(
            workload, cluster, problem, PipelinePlacement(np.array(stage + stage[::-1]), devices)
        )
        return " ".join(report.violations)

    assert not said(PipelineJob(4), [0, 1, 2], (0, 1, 2))
    assert "no other" in said(PipelineJob(4), [0, 0, 2], (0, 1, 2))
    assert "two stages are on one device" in said(PipelineJob(4), [0, 1, 2], (0, 1, 0))
    assert "more than allowed" in said(
        PipelineJob(4, placement_rules=PlacementRules(max_stages=2)), [0, 1, 2], (0, 1, 2)
    )
    assert "whose stage comes later" in said(PipelineJob(4), [1, 0, 2], (0, 1, 2))
    assert "stage s − D" in said(PipelineJob(4, "interleaved"), [0, 1, 2], (0, 1, 2))
    workload = column((4.0,) * 4)
    assert "no multiple" in said(PipelineJob(3, "interleaved"), [0, 1, 2, 3], (0, 1, 0, 1))
    assert not said(PipelineJob(4, "interleaved"), [0, 1, 2, 3], (0, 1, 0, 1))


def test_a_changed_objective_is_refused() -> None:
    workload, cluster = column(), accelerators_and_cpus(3)
    plan = solve(workload, cluster, PipelineJob(4)).plan
    assert plan is not None
    with pytest.raises(VerificationError):
        verify(workload, replace(plan, objective=0.9 * plan.objective, bound=0.0))
    assert isinstance(plan.solution, PipelinePlacement)
    for devices in itertools.permutations(range(3)):
        solution = PipelinePlacement(plan.solution.stage, devices[: len(plan.solution.devices)])
        verify(workload, replace(plan, solution=solution))  # devices are alike
    moved = plan.solution.stage.copy()
    moved[0] = moved.max()
    with pytest.raises(VerificationError):
        verify(workload, replace(plan, solution=PipelinePlacement(moved, plan.solution.devices)))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_equal_stages_take_the_closed_form(schedule: str) -> None:
    """GPipe and 1F1B: (M + P − 1)(f + b); zero bubble waits less."""
    stages = PipelinePlacement(np.array([0, 1, 2, 2, 1, 0]), (0, 1, 2))
    report = evaluate(column(), accelerators_and_cpus(3), PipelineJob(6, schedule), stages)
    usual = (6 + 3 - 1) * (1.0 + 2.0)
    assert report.objective == usual if schedule in ("gpipe", "1f1b") else report.objective < usual
