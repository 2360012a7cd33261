"""What a training job's plan can be asked: why, what another differs in, when ranks do what."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import stagecut.api.job
from stagecut.api.explain_job import OF_PIPELINES, diff_jobs, explain_job, simulate_job
from stagecut.api.job import job_costs, solve_job, what_would_help
from stagecut.api.job_formulation import job_formulation
from stagecut.api.job_front import front
from stagecut.commands.show.job import print_difference, print_explanation, print_front
from stagecut.instances import InputError
from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.layout import Layout, Recompute, describe
from stagecut.instances.costs.memory import RankStages, peak_memory, rank_memory
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.job.plan import JobPlan
from stagecut.instances.job.problem import TrainingJob
from stagecut.runtime.estimate import iteration_time
from stagecut.runtime.verify.layouts import check_job_bound
from stagecut.solvers import Limits
from stagecut.solvers.job.search import JobProgress, JobSearch, search_job

BASE = shipped_model("llama3.2-1b")
MODEL = replace(BASE, name="small", blocks=BASE.blocks[:8])
JOB = TrainingJob(global_batch=16, sequence=2048)


@cache
def plan_of(**fixed: Any) -> JobPlan:
    """Return the plan of `JOB` with other fields on four devices."""
    plan = solve_job(MODEL, "h100:4", replace(JOB, **fixed)).plan
    assert plan is not None
    return plan


def test_ctrl_c_ends_a_search_with_its_plan_and_a_bound() -> None:
    """The first plan comes, judged, with the bound of all that has been looked at until then."""
    before = signal.getsignal(signal.SIGINT)
    told: list[JobProgress] = []

    def once(progress: JobProgress) -> None:
        told.append(progress)
        if len(told) == 1:
            signal.raise_signal(signal.SIGINT)

    found = solve_job(MODEL, "h100:4", replace(JOB, pipeline=(2, 4)), on_progress=once)
    assert signal.getsignal(signal.SIGINT) is before
    assert found.status == "feasible"
    assert found.plan is not None
    assert found.plan.bound < found.plan.seconds
    assert found.plan.certificate.points["open"] > 0
    check_job_bound(found.plan)


@pytest.mark.parametrize("fixed", [{}, {"pipeline": (2, 4)}])
def test_each_decision_is_worth_what_a_search_without_it_says(fixed: dict[str, Any]) -> None:
    """No plan with another value is below the bound; the one that is shown is a plan."""
    plan = plan_of(**fixed)
    why = explain_job(plan)
    costs = job_costs(plan.model, plan.cluster, plan.job)
    assert sum(why.terms.values()) == pytest.approx(plan.seconds)
    assert why.memory["free"] >= 0
    seen = set()
    for one in why.decisions:
        seen.add(one.field)
        assert one.bound <= one.seconds
        assert one.seconds >= plan.bound
        if one.layout is None:
            continue
        assert getattr(one.layout, one.field) != getattr(plan.layout, one.field)
        assert costs.judge([one.layout])[0] == pytest.approx(one.seconds)
        behind = one.seconds - plan.seconds
        assert sum(one.behind.values()) == pytest.approx(behind, abs=1e-9)
        values = plan.job.allowed(one.field) if hasattr(plan.job, one.field) else None
        if one.field in ("tensor", "pipeline"):
            options = tuple(v for v in values or (1, 2, 4) if v != getattr(plan.layout, one.field))
            without = solve_job(MODEL, "h100:4", replace(plan.job, **{one.field: options}))
            assert without.plan is not None
            assert one.bound <= without.plan.seconds <= one.seconds * (1 + 1e-9)
        for other in why.decisions:  # what was found for one decision is known for all
            if other.layout is not None and other.field != "recompute":
                differs = getattr(other.layout, one.field) != getattr(plan.layout, one.field)
                if one.field in OF_PIPELINES and other.layout.pipeline == 1:
                    continue
                assert one.field == "recompute" or not differs or one.seconds <= other.seconds
    assert {"tensor", "microbatch", "zero", "recompute"} <= seen
    assert next(one.name for one in why.usual) == "ZeRO-3 over all devices"


def test_another_schedule_is_one_of_a_pipeline() -> None:
    """A plan on one pipeline rank decides the pipeline otherwise, not schedule or chunks."""
    plan, wider = plan_of(pipeline=2, chunks=2, schedules=("interleaved",)), plan_of()
    why = explain_job(replace(wider, layout=plan.layout), seconds=1e-6)
    found = {one.field: one.layout for one in why.decisions}
    assert (single := found["pipeline"]) is not None
    assert single.pipeline == 1
    for field in OF_PIPELINES:
        assert (other := found[field]) is None or other.pipeline > 1


def test_no_plan_that_solve_lists_is_faster_than_what_explain_knows() -> None:
    """Both say what other decisions cost."""
    found = solve_job(MODEL, "h100:4", JOB)
    assert found.plan is not None
    for one in explain_job(found.plan).decisions:
        if one.field == "recompute":  # which modules, or how many layers: not a field of its own
            continue
        own = getattr(found.plan.layout, one.field)
        listed = [
            each.seconds
            for each in found.candidates
            if getattr(each.layout, one.field) != own
            and (each.layout.pipeline > 1 or one.field not in OF_PIPELINES)
        ]
        assert one.seconds <= min(listed, default=np.inf) * (1 + 5e-3)


def test_a_result_is_shown_in_a_line_and_its_candidates_as_a_table() -> None:
    """No two candidates read alike."""
    found = solve_job(MODEL, "h100:4", JOB)
    assert found.plan is not None
    assert repr(found).startswith("JobResult(status=optimal, model=small, devices=4 h100-sxm, ")
    assert f"seconds={found.plan.seconds:.6g}" in repr(found.plan)
    assert "<th>layout</th>" in found._repr_html_()
    table = found.to_pandas()
    assert table["layout"].is_unique
    assert table["seconds"].is_monotonic_increasing
    nothing = solve_job(MODEL, "h100:4", replace(JOB, memory_bytes=2**30))
    assert "reason=" in repr(nothing)
    assert nothing.to_pandas().empty


def test_layouts_with_other_stages_read_differently() -> None:
    """Numbers of layers, and of recomputed layers, of stages make layouts faster or slower."""
    layout = Layout(pipeline=2, recompute=frozenset({Recompute.FULL}))
    others = {"stage_layers": ((3, 5), (4, 4), (5, 3)), "recompute_layers": ((0, 2), (1, 1))}
    for name, values in others.items():
        texts = {describe(replace(layout, **{name: value})) for value in values}
        assert len(texts) == len(values)


def test_no_candidate_is_better_than_the_plan_of_a_search_that_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(*given: Any, **named: Any) -> JobSearch:
        search = search_job(*given, **named)
        worst = max(search.tried, key=search.tried.__getitem__)
        search.tried, search.best = {worst: search.tried[worst]}, worst
        search.seconds = search.tried[worst]
        search.interrupt()
        return search

    monkeypatch.setattr("stagecut.api.job.search_job", stopped)
    found = solve_job(MODEL, "h100:4", JOB)
    assert found.plan is not None
    assert len(found.candidates) > 1
    assert found.plan.seconds == found.candidates[0].seconds
    check_job_bound(found.plan)


def test_two_plans_differ_in_what_was_asked_and_what_came_of_it() -> None:
    """Fields, seconds and bytes by term; nothing of a plan and itself."""
    one, two = plan_of(tensor=1), plan_of(tensor=2)
    found = diff_jobs(one, two)
    assert found.asked == {"tensor": (1, 2)}
    assert found.layout["tensor"] == (1, 2)
    assert found.seconds == (one.seconds, two.seconds)
    assert sum(found.terms.values()) == pytest.approx(two.seconds - one.seconds)
    assert list(found.terms.values()) == sorted(found.terms.values(), reverse=True)
    same = diff_jobs(one, one)
    assert not any((same.asked, same.layout, same.terms, same.memory))


def test_the_costs_of_a_result_are_those_of_its_search_and_no_others() -> None:
    table = replace(calibration("h100", JOB.settings.software), step=0.5)
    found = solve_job(MODEL, "h100:4", replace(JOB, pipeline=1), calibration=table)
    assert found.plan is not None
    assert found.estimate.seconds == pytest.approx(found.plan.seconds, rel=1e-9)
    for use in (explain_job, simulate_job, job_formulation, what_would_help):
        with pytest.raises(InputError, match="made with efficiencies"):
            use(found.plan)
    same = diff_jobs(found.plan, found.plan, calibrations=(table, table))
    assert not any((same.asked, same.layout, same.terms, same.memory))
    with pytest.raises(InputError, match="made with efficiencies"):
        diff_jobs(found.plan, found.plan)
    changes = what_would_help(found.plan, Limits(gap=0.1), calibration=table)
    assert all(one.seconds > 0.5 * table.step for one in changes)


@pytest.mark.parametrize("fixed", [
    {"pipeline": 1}, {"pipeline": 2, "chunks": 1}, {"pipeline": 4}, {"pipeline": 2, "chunks": 2},
])  # fmt: skip
def test_the_simulation_takes_what_the_schedule_takes(fixed: dict[str, Any]) -> None:
    """All of the plan's seconds but the traffic of replicas, the optimizer and the step."""
    plan = plan_of(**fixed)
    table = calibration(plan.cluster.accelerator.family, plan.job.settings.software)
    terms = iteration_time(plan.model, plan.layout, plan.cluster, table).terms
    beside = terms["gradients"] + terms["optimizer"] + table.step
    run = simulate_job(plan)
    assert run.makespan == pytest.approx(plan.seconds - beside, rel=1e-9)
    assert run.busiest_link is None  # a message is a delay, which is no share of a link's time
    assert len(run.memory) == plan.layout.pipeline
    for rank, held in enumerate(run.memory):
        most = max(np.asarray(held.activations))
        counted = [
            count
            for (stage, count) in held.in_flight.items()
            if stage % plan.layout.pipeline == rank
        ]
        assert most > 0
        needed = rank_memory(plan.model, plan.layout, rank, RankStages.of(plan.model, plan.layout))
        assert run.peak_memory[f"rank {rank}"] == pytest.approx(needed.needed, rel=1e-9)
        assert max(counted) <= plan.layout.microbatches


def test_the_front_over_numbers_of_devices() -> None:
    """More devices are faster and dearer; what does not fit or divide has a reason."""
    job = replace(JOB, memory_bytes=12e9, context=1)
    found = front(MODEL, "h100", job, (8, 1, 3, 2, 4), price=3.6)
    assert [one.gpus for one in found.points] == [1, 2, 3, 4, 8]
    assert found.points[0].layout is None
    assert "GiB per device" in found.points[0].reason
    assert found.fewest is not None
    assert found.fewest.gpus > 1
    for one in found.points:
        if one.layout is not None:
            tokens = JOB.global_batch * JOB.sequence / one.seconds
            assert one.tokens_per_s == pytest.approx(tokens)
            assert one.price == pytest.approx(1e-3 * one.gpus / tokens * 1e6)
            assert one.bound <= one.seconds
    best = found.points[-1]
    assert found.fewest_for(best.tokens_per_s) == best
    assert found.fewest_for(1.001 * best.tokens_per_s) is None
    assert found.undominated[-1] == best
    assert found.cheapest == min(found.points, key=lambda one: one.price or float("inf"))
    frame = found.to_pandas()
    assert frame["devices"].tolist() == [1, 2, 3, 4, 8]
    assert frame["objective"].tolist() == [one.seconds for one in found.points]


def test_a_number_of_devices_without_layout_has_its_reason() -> None:
    """Others may divide the batch; where none does, the front is refused."""
    job = replace(JOB, tensor=2, context=1, pipeline=1)
    found = front(MODEL, "h100", job, (3, 4))
    assert found.points[0].layout is None
    assert "no layout of 3 devices" in found.points[0].reason
    assert found.fewest == found.points[1]
    with pytest.raises(InputError, match="no layout of 3 devices"):
        front(MODEL, "h100", job, (3, 5))


def test_sequences_beyond_the_learned_positions_are_refused() -> None:
    job = TrainingJob(global_batch=8, sequence=1025)
    with pytest.raises(InputError, match="gpt2 has 1024 learned positions; take at most 1024"):
        solve_job("gpt2", "h100:8", job)


@pytest.mark.parametrize(("kind", "gpus", "said"), [
    ("h100", (), "gpus"), ("h100", (0,), "gpus"), ("h100:8", (12,), "nodes of 8"),
    ("h100:8x2", (8,), "PER_NODE"), ("h999", (8,), "h999"),
])  # fmt: skip
def test_fronts_of_nothing_are_refused(kind: str, gpus: tuple[int, ...], said: str) -> None:
    """Numbers that are none, parts of nodes, and devices that are not known."""
    with pytest.raises(InputError, match=said):
        front(MODEL, kind, JOB, gpus)


def test_what_is_printed_of_plans(capsys: pytest.CaptureFixture[str]) -> None:
    """Decisions with what they are worth, fields that differ, and a row for each front point."""
    one, two = plan_of(tensor=1), plan_of(tensor=2)
    limits = Limits(seconds=300.0, gap=0.05)
    print_explanation(explain_job(one), what_would_help(one, limits))
    print_difference(diff_jobs(one, two), ("one.json", "two.json"))
    print_front(front(MODEL, "h100", replace(JOB, memory_bytes=12e9), (1, 4), price=2.0), 1.0)
    said = " ".join(capsys.readouterr().out.split())
    for words in ("decided otherwise", "microbatch", "tensor", "more in the second", "front",
                  "twice the memory", "fewest of these that reach 1 tokens/s: 4"):  # fmt: skip
        assert words in said, words


def test_plans_that_recompute_no_layer_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(tensor=1, recompute=((),))
    able = replace(plan.layout, recompute=frozenset({Recompute.FULL}), recompute_layers=0)
    found = diff_jobs(plan, replace(plan, layout=able))
    print_difference(found, ("one.json", "two.json"))
    assert not found.layout
    assert "both take the same seconds and bytes" in capsys.readouterr().out
    every, counted = (replace(able, recompute_layers=count) for count in (None, MODEL.layers))
    full = replace(plan, layout=every)
    assert not diff_jobs(full, replace(plan, layout=counted)).layout
    again = diff_jobs(plan, replace(plan, layout=replace(able, recompute_layers=1)))
    assert set(again.layout) == {"recompute", "recompute_layers"}
    print_difference(again, ("one.json", "two.json"))
    (row,) = (row for row in capsys.readouterr().out.splitlines() if "recompute " in row)
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["none", "full"]
    print_difference(
        diff_jobs(replace(plan, layout=replace(able, recompute_layers=1)), plan), ("one", "two")
    )
    (row,) = (row for row in capsys.readouterr().out.splitlines() if "recomputation" in row)
    assert row.split("│")[2].strip().startswith("−")


def test_twice_the_memory_is_twice_what_the_job_allows() -> None:
    plan = plan_of(memory_bytes=8 * 2**30)
    change = what_would_help(plan, Limits(seconds=300.0, gap=0.05))[0]
    assert change.change == "twice the memory"
    assert change.layout is not None
    assert peak_memory(MODEL, change.layout).needed <= 16 * 2**30
    assert change.seconds < plan.seconds


def test_changes_for_which_no_time_is_left_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(tensor=1)
    changes = what_would_help(plan, Limits(seconds=1e-9))
    assert changes
    assert all(one.layout is None and one.bound == 0 for one in changes)
    print_explanation(explain_job(plan, seconds=0.0), changes)
    assert "twice the memory: no time was left" in capsys.readouterr().out


def test_parts_in_host_memory_help_where_memory_binds() -> None:
    fixed: dict[str, Any] = {"pipeline": 1, "context": 1, "microbatch": 1}
    plan, limits = plan_of(memory_bytes=8 * 2**30, **fixed), Limits(seconds=60.0, gap=0.05)
    more, *_, hosts = what_would_help(plan, limits)
    assert more.seconds < plan.seconds
    assert hosts.change == "parts in host memory"
    assert hosts.layout is not None
    assert hosts.layout.offload_optimizer + hosts.layout.offload_activations > 0
    assert peak_memory(MODEL, hosts.layout).needed <= 8 * 2**30
    assert hosts.bound <= hosts.seconds < plan.seconds
    free = what_would_help(plan_of(**fixed), limits)
    assert "parts in host memory" not in {one.change for one in free}


def test_parts_in_host_memory_are_coarser_in_large_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any the row is left out, as the space would not be looked through."""
    plan = plan_of(memory_bytes=8 * 2**30, pipeline=1, context=1, microbatch=1)
    points = sum(plan.certificate.points.values())
    asked: list[TrainingJob] = []
    solve = stagecut.api.job.solve_job

    def solved(*args: Any, **named: Any) -> Any:
        asked.append(args[2])
        return solve(*args, **named)

    monkeypatch.setattr("stagecut.api.job.solve_job", solved)
    for times, parts in ((9, (0.0, 0.5, 1.0)), (4, (0.0, 1.0)), (3, None)):
        monkeypatch.setattr("stagecut.api.job.MOST_POINTS", times * points)
        last = what_would_help(plan, Limits(seconds=60.0, gap=0.05))[-1]
        assert (last.change == "parts in host memory") == (parts is not None)
        assert parts is None or asked[-1].parts("offload_optimizer") == parts


@pytest.mark.parametrize(
    ("fixed", "there"),
    [
        ({"launcher": "torchtitan", "zero": 3}, False),  # runs them, and other layouts with them
        ({"launcher": "deepspeed"}, False),
        ({"schedules": ("1f1b",)}, True),
    ],
)
def test_what_zero_bubble_schedules_save_is_told_with_the_same_kernels(
    fixed: dict[str, Any], there: bool
) -> None:
    """Not with those of another launcher, which are faster or slower whatever the schedule."""
    found = what_would_help(plan_of(pipeline=2, **fixed), Limits(gap=0.05))
    rows = [one for one in found if one.change == "zero-bubble schedules"]
    assert bool(rows) is there
    assert all(one.layout is not None and one.layout.schedule != "1f1b" for one in rows)


def test_a_change_that_leaves_the_plan_possible_costs_nothing() -> None:
    """No change makes the best plan slower than the present one, however short the search."""
    plan = plan_of(pipeline=4)
    table = calibration(plan.cluster.accelerator.family, plan.job.settings.software)
    doubled = replace(plan.layout, global_batch=2 * plan.layout.global_batch)
    twice = iteration_time(plan.model, doubled, plan.cluster, table).seconds / 2
    for one in what_would_help(plan, Limits(gap=0.9)):
        own = twice if one.change == "twice the batch" else plan.seconds
        assert one.bound <= one.seconds <= own * (1 + 1e-9)
