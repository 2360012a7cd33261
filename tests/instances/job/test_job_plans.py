"""Plans of training jobs: files, forged claims, and what no layout can do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stagecut
from stagecut.api.explain_job import simulate_job
from stagecut.api.job import JobResult, job_costs, judge_usual, solve_job, what_would_help
from stagecut.formulations.job.space import job_space
from stagecut.instances import InputError, Status, VerificationError
from stagecut.instances.costs import calibration as calibrations
from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.layout import Layout
from stagecut.instances.costs.memory import peak_memory
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.job.plan import CertificateRow, JobPlan, Reason, is_job_plan, load_job_plan
from stagecut.instances.job.problem import TrainingJob
from stagecut.runtime.verify.layouts import check_job_bound, verify_job_plan
from stagecut.solvers import Limits
from stagecut.solvers.job.search import search_job

#: A job whose best plan has a pipeline: one sequence at a time, and two devices that share it.
PIPED = TrainingJob(
    global_batch=4, sequence=1024, microbatch=1, tensor=1, context=1, pipeline=(1, 2), chunks=1
)


def small(layers: int = 4, name: str = "gpt2") -> ModelDescription:
    """Return a model of few layers."""
    model = shipped_model(name)
    return replace(model, name="small", blocks=model.blocks[:layers])


@cache
def solved(devices: int = 2, **fixed: Any) -> JobResult:
    """Return the plan of `PIPED` with other fields, on so many devices."""
    limits = Limits(seconds=60.0, gap=1e-4)
    return solve_job(small(), f"h100:{devices}", replace(PIPED, **fixed), limits=limits)


def plan_of(**fixed: Any) -> JobPlan:
    """Return a plan that there is."""
    plan = solved(**fixed).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("fixed", [{}, {"pipeline": 2}, {"launcher": "any", "recipe": "fp32"}])
def test_a_file_holds_the_whole_plan(tmp_path: Path, fixed: dict[str, Any]) -> None:
    """Model, cluster, job, layout and certificate come back, and verify as they did."""
    plan = plan_of(**fixed)
    path = tmp_path / "job.json"
    plan.save(path)
    again = load_job_plan(path)
    assert is_job_plan(path)
    assert again == plan
    verify_job_plan(again)


ROW = {**dict.fromkeys(("tensor", "context", "pipeline", "data", "expert", "expert_tensor"), 1),
       "points": {"luck": 1}, "bound": 1.0}  # fmt: skip
BROKEN = [
    ("{", "its JSON ends too early"),
    ("[]", "give the plan of a training job"),
    ({"version": 2}, "version 2"),
    ({"layout": None}, "layout is null"),
    ({"layout": {"tensr": 2}}, 'layout: unknown field "tensr"'),
    ({"layout": {"tensor": "two"}}, 'layout: tensor is "two"'),
    ({"layout": {"schedule": "2f2b"}}, "schedule is .* one of 1f1b"),
    ({"seconds": 0}, "seconds: 0"),
    ({"bound": -1.0}, "bound: -1"),
    ({"seconds": float("nan")}, "seconds: nan"),
    ({"model": "gpt5"}, "gpt5"),
    ({"job": {"global_batch": 0}}, "global_batch"),
    ({"certificate": {"costs": "", "calibration": "h"}}, "certificate: rows is missing"),
    ({"certificate": {"costs": "", "calibration": "", "rows": [ROW]}}, '"luck"'),
    ("without cluster", "cluster is missing"),
    ("memory_bytes", "memory_bytes is NaN; it must be above 0"),  # in which everything would fit
    ("bandwidth", "bandwidth is -1"),
    ("kv_heads", "kv_heads is 0"),
    ("block", "a block has no attention"),
]


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "without cluster": lambda plan: plan.pop("cluster"),
    "memory_bytes": lambda plan: plan["cluster"]["nodes"][0]["accelerator"].update(
        memory_bytes=float("nan")
    ),
    "bandwidth": lambda plan: plan["cluster"]["network"].update(bandwidth=-1),
    "kv_heads": lambda plan: plan["model"]["blocks"][0]["attention"].update(kv_heads=0),
    "block": lambda plan: plan["model"]["blocks"].append({}),
}


@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, change: Any, said: str) -> None:
    """The file and the field are named."""
    plain = plan_of().as_dict()
    if isinstance(change, str) and change in DAMAGE:
        DAMAGE[change](plain)
        text = json.dumps(plain)
    else:
        text = change if isinstance(change, str) else json.dumps({**plain, **change})
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as told:
        load_job_plan(path)
    assert str(told.value).startswith(str(path)) or "gpt5" in said
    assert "\n" not in str(told.value)


def test_changed_plans_are_refused() -> None:
    """Other seconds, another layout, batch, certificate or memory than the plan claims."""
    plan = plan_of(pipeline=2)
    layout = plan.layout
    swapped = tuple(reversed(layout.stage_layers))
    uneven = swapped if swapped != layout.stage_layers else (1, 3)
    rows = plan.certificate.rows
    changes: list[tuple[str, JobPlan]] = [
        ("seconds", replace(plan, seconds=plan.seconds * 0.99)),
        ("seconds", replace(plan, layout=replace(layout, stage_layers=uneven))),
        ("layout", replace(plan, layout=replace(layout, pipeline=1, data=2, stage_layers=()))),
        ("layout", replace(plan, layout=replace(layout, tensor=2))),
        ("layout", replace(plan, layout=replace(layout, offload_optimizer=0.5))),
        ("global_batch", replace(plan, layout=replace(layout, global_batch=8))),
        ("costs", replace(plan, job=replace(plan.job, memory_bytes=1e9))),
        ("costs", replace(plan, certificate=replace(plan.certificate, costs="0" * 32))),
        ("costs", replace(plan, certificate=replace(plan.certificate, calibration="another"))),
        ("bound", replace(plan, bound=plan.seconds * 1.01)),
        ("certificate", replace(plan, certificate=replace(plan.certificate, rows=_lower(plan)))),
        ("two rows", replace(plan, certificate=replace(plan.certificate, rows=2 * rows))),
        ("fewer than 0", _rows(plan, points={Reason.WORK: 1000, Reason.OPEN: -1})),
        ("it claims", _rows(plan, bound=plan.seconds * 1.01)),
        ("it claims nan", _rows(plan, bound=float("nan"))),
    ]
    verify_job_plan(plan)
    for said, changed in changes:
        with pytest.raises(VerificationError, match=said):
            verify_job_plan(changed)


def test_the_hash_covers_the_efficiencies_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan whose second kind of nodes was priced with a table of its maker's is refused."""
    cluster = training_cluster("h100:1x1+a100:1x1")
    plan = solve_job(small(), cluster, PIPED).plan
    assert plan is not None
    verify_job_plan(plan)
    second = calibration("a100", PIPED.settings.software)
    forged = replace(second, links=replace(second.links, peer=0.5 * second.links.peer))
    tables = {"a100": forged, "h100": calibration("h100", PIPED.settings.software)}
    monkeypatch.setattr(calibrations, "calibration", lambda family, _: tables[family])
    other = solve_job(small(), cluster, PIPED).plan
    monkeypatch.undo()
    assert other is not None
    assert (other.layout, other.seconds) == (plan.layout, plan.seconds)  # which use no such link
    with pytest.raises(VerificationError, match="costs"):
        verify_job_plan(other)


def test_own_efficiencies_hold_for_all_that_is_asked_of_a_plan() -> None:
    """A slower host: the estimate takes the plan's seconds, and no change is priced without it."""
    table = replace(calibration("h100", PIPED.settings.software), host=3e-4)
    found = solve_job(small(), "h100:2", PIPED, calibration=table)
    assert found.plan is not None
    assert found.plan.seconds > 1.5 * plan_of().seconds
    assert found.estimate.seconds == pytest.approx(found.plan.seconds, rel=1e-12)
    (_, network, *_) = what_would_help(found.plan, Limits(seconds=60.0), calibration=table)
    assert network.change == "twice the network"  # which two devices of a node do not use
    assert network.seconds == pytest.approx(found.plan.seconds, rel=1e-9)


def test_plans_that_do_not_fit_are_refused() -> None:
    """The best plan with all memory, where there is a little less of it."""
    best = plan_of(pipeline=2)
    most = peak_memory(best.model, best.layout).needed
    tight = plan_of(pipeline=2, memory_bytes=0.98 * most)
    assert tight.layout != best.layout
    assert tight.seconds > best.seconds
    verify_job_plan(tight)
    with pytest.raises(VerificationError, match=r"memory: pipeline rank \d needs"):
        verify_job_plan(replace(tight, layout=best.layout, seconds=best.seconds))


def _lower(plan: JobPlan) -> tuple[CertificateRow, ...]:
    rows = plan.certificate.rows
    return tuple(replace(row, bound=row.bound and 0.5 * row.bound) for row in rows)


def _rows(plan: JobPlan, **changed: Any) -> JobPlan:
    """Return a plan whose certificate's first row is another."""
    first, *others = plan.certificate.rows
    certificate = replace(plan.certificate, rows=(replace(first, **changed), *others))
    return replace(plan, certificate=certificate)


@pytest.mark.parametrize("fixed", [{}, {"pipeline": 2}, {"launcher": "any", "pipeline": 2}])
def test_bounds_are_proved_again(fixed: dict[str, Any]) -> None:
    """A plan within its gap is proved, and its certificate counts what there is."""
    plan = plan_of(**fixed)
    checked = check_job_bound(plan)
    assert checked.points == sum(plan.certificate.points.values())


def test_a_bound_of_zero_is_proved() -> None:
    """It claims nothing; a row without a bound claims that nothing fits."""
    plan = replace(plan_of(), bound=0.0)
    check_job_bound(_rows(plan, bound=0.0))
    with pytest.raises(VerificationError, match="nothing fits"):
        check_job_bound(_rows(plan, bound=None))


def test_forged_bounds_are_refused() -> None:
    """A plan that is not the best, claimed to be; points that the certificate leaves out."""
    best = plan_of(pipeline=2)
    counts = (1, 3) if best.layout.stage_layers != (1, 3) else (3, 1)
    worse = replace(best.layout, stage_layers=counts)
    seconds = float(job_costs(best.model, best.cluster, best.job).judge([worse])[0])
    assert seconds > best.seconds * 1.001
    rows = tuple(replace(row, bound=seconds) for row in best.certificate.rows)
    forged = replace(
        best, layout=worse, seconds=seconds, bound=seconds,
        certificate=replace(best.certificate, rows=rows),
    )  # fmt: skip
    verify_job_plan(forged)  # is what it claims, but for its bound
    with pytest.raises(VerificationError, match="is not proved at TP 1"):
        check_job_bound(forged)
    with pytest.raises(VerificationError, match="is not proved at TP 1"):  # a row's bound alone
        check_job_bound(replace(forged, bound=best.bound))
    with pytest.raises(VerificationError, match="that nothing fits is not proved at TP 1"):
        check_job_bound(_rows(best, bound=None))
    row = best.certificate.rows[0]
    reason, count = next(iter(row.points.items()))
    with pytest.raises(VerificationError, match=f"counts {sum(row.points.values()) + 1} points"):
        check_job_bound(_rows(best, points={**row.points, reason: count + 1}))
    with pytest.raises(VerificationError, match="it counts"):
        check_job_bound(_rows(best, tensor=2))


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"pipeline": 3}, "pipeline 3"),
    ({"microbatch": 3}, "microbatch 3"),
    ({"tensor": 5}, "tensor 5"),
    ({"data": 2, "pipeline": 2}, "data 2"),
    ({"launcher": "deepspeed", "pipeline": 2, "zero": 3}, "zero 3"),
    ({"recipe": "megatron-fp8"}, "recipe"),
]


@pytest.mark.parametrize(("fixed", "said"), CONTRADICTIONS)
def test_contradictions_are_told_in_one_line(fixed: dict[str, Any], said: str) -> None:
    """Degrees that do not go together, with devices, batch, launcher, or the device's products."""
    with pytest.raises(InputError, match=said) as told:
        solve_job(small(), "a100:2", replace(PIPED, **fixed))
    assert "\n" not in str(told.value)


def test_stages_on_faster_nodes_have_more_layers() -> None:
    """A pipeline over two kinds of nodes, with a bound that is proved again."""
    cluster = "h100:1x1+a100:1x1,network=25GB/s,latency=8us"
    job = TrainingJob(
        global_batch=16, sequence=2048, microbatch=1, pipeline=2, launcher="any", chunks=1
    )
    found = solve_job(small(12, "llama3.2-1b"), cluster, job)
    assert found.plan is not None
    first, last = found.plan.layout.stage_layers
    assert first > last + 2
    check_job_bound(found.plan)


def test_sequences_that_only_some_degrees_divide() -> None:
    """Two tensor-parallel ranks take a share of each of four parts of 4,104 tokens, four cannot."""
    job = TrainingJob(global_batch=2, sequence=4104, context=2, microbatch=1, pipeline=1)
    model = small(2, "llama3.2-1b")
    with pytest.raises(InputError, match="no layout of 8"):
        solve_job(model, "h100:8", replace(job, tensor=4))
    found = solve_job(model, "h100:8", replace(job, tensor=(2, 4)))
    assert found.plan is not None
    assert found.plan.layout.tensor == 2
    assert all(row.tensor == 2 for row in found.plan.certificate.rows)
    check_job_bound(found.plan)


def test_what_does_not_fit_says_what_would() -> None:
    """Infeasible, with bytes from which on something fits."""
    job = replace(PIPED, memory_bytes=1e9)
    found = solve_job(small(), "h100:2", job)
    assert found.status is Status.INFEASIBLE
    assert found.plan is None
    assert found.least_memory is not None
    assert found.least_memory > 1e9
    assert "GiB per device in any layout" in found.reason
    short = solve_job(small(), "h100:2", replace(job, memory_bytes=found.least_memory * 0.98))
    enough = solve_job(small(), "h100:2", replace(job, memory_bytes=found.least_memory * 1.25))
    assert short.plan is None
    assert enough.plan is not None
    only_just = solve_job(small(), "h100:2", replace(job, memory_bytes=found.least_memory * 1.01))
    assert only_just.plan is not None or "more than" in only_just.reason


def test_what_does_not_fit_on_unlike_nodes() -> None:
    """All devices' bytes are scaled, and what helps names all kinds."""
    job = TrainingJob(global_batch=64, sequence=4096)
    found = solve_job("llama3-8b", "h100:1+a100-40gb:1", job)
    assert found.plan is None
    assert found.least_memory is not None
    small = training_cluster("a100-40gb:1").accelerator.memory_bytes
    times = found.least_memory / small
    assert f"{times:.2f} times the memory of 1 h100-sxm + 1 a100-40gb in any" in found.reason
    assert "it fits on 2 h100-sxm + 2 a100-40gb" in found.reason
    sharded = replace(job, launcher="torchtitan", global_batch=2)
    found = solve_job("llama3-8b", "h100:1+a100-40gb:1", sharded)
    assert found.status is Status.NO_SOLUTION
    assert "more time does not help" in found.reason


def test_a_deadline_leaves_a_true_bound() -> None:
    """No time for anything: a bound that the whole search confirms."""
    job = replace(PIPED, pipeline=2, launcher="any")
    best = plan_of(pipeline=2, launcher="any")
    costs = job_costs(best.model, best.cluster, job)
    space = job_space(costs.model, costs.cluster, job)
    late = time.monotonic()
    search = search_job(space, costs.prices, costs.judge, gap=0.0, deadline=late)
    assert 0 < search.least_bound <= best.seconds * (1 + 1e-9)
    found = solve_job(small(), "h100:2", job, limits=Limits(seconds=1e-9, gap=0.0))
    assert found.plan is not None, "what is usually done is known without a search"
    assert found.status is Status.FEASIBLE
    assert found.plan.bound <= best.seconds * (1 + 1e-9) <= found.plan.seconds * (1 + 2e-9)


def test_one_device() -> None:
    """There is nothing to divide; microbatch and recomputation remain."""
    found = solve_job(small(1), "h100:1", TrainingJob(global_batch=4, sequence=512))
    assert found.plan is not None
    assert found.plan.layout.devices == 1
    assert found.status is Status.OPTIMAL
    check_job_bound(found.plan)


def test_time_that_is_up_before_costs_are_known_leaves_a_usual_layout() -> None:
    """The bound is then that of the products at the device's peak, and is proved."""
    found = solve_job(small(), "h100:2", PIPED, limits=Limits(seconds=1e-9))
    assert found.plan is not None
    assert found.status == "feasible"
    assert found.programs == (0, 0)
    assert 0 < found.plan.bound < found.plan.seconds
    assert set().union(*(row.points for row in found.plan.certificate.rows)) == {"open"}
    check_job_bound(found.plan)


def test_a_published_recipe_outside_of_the_space_is_where_a_search_starts() -> None:
    """With what the job decides in place of what the recipe has: here, how tokens are sent."""
    costs = job_costs("deepseek-v3", "h100:8x256", TrainingJob(global_batch=4096))
    (recipe,) = [one for one in costs.usual() if one.name.startswith("NVIDIA's recipe")]
    assert recipe.layout is not None
    assert costs.outside(recipe.layout) == {"dispatcher": costs.job.template.dispatcher}
    (start,) = costs.starts([recipe])
    assert costs.outside(start) == {}
    assert costs.judge([start])[0] < np.inf
    told = {one.name: one.outside for one in judge_usual(costs, start, costs.usual())}
    assert {name: outside for name, outside in told.items() if outside} == {
        recipe.name: ("dispatcher",)
    }


def test_a_usual_choice_that_the_job_does_not_leave_open_is_told_to_be_outside() -> None:
    """It may be faster than the plan, and than the bound, which holds for what is open."""
    costs = job_costs(small(), "h100:2", replace(PIPED, pipeline=2, microbatch=None, recompute=()))
    usual = {one.name: one for one in judge_usual(costs, Layout(), costs.usual())}
    assert usual["ZeRO-3 over all devices"].outside == ("pipeline",)
    assert usual["torchtitan's recipes"].outside == ("pipeline", "recompute")
    assert usual["ZeRO-1 in a pipeline (DeepSpeed)"].outside == ()


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_stages_in_a_v(schedule: str) -> None:
    """Embedding and head are on the first rank; what is proved of the plan is proved again."""
    job = replace(PIPED, launcher="torchtitan", schedules=(schedule,), pipeline=2, chunks=None)
    found = solve_job(small(6, "llama3.2-1b"), "h100:2", job)
    assert found.plan is not None
    assert found.plan.layout.stage_ranks == (0, 1, 1, 0)
    assert found.plan.gap <= 1e-3
    check_job_bound(found.plan)
    assert simulate_job(found.plan).makespan < found.plan.seconds


@pytest.mark.parametrize("more", [{"method": "dp"}, {"workers": 2}, {"on_progress": print}])
def test_what_a_search_for_a_layout_does_not_read_is_refused(more: dict[str, Any]) -> None:
    """Rather than left out in silence, as the call takes it for other problems."""
    with pytest.raises(InputError, match=f"^{next(iter(more))}: a training job's"):
        stagecut.solve("llama3.2-1b", "h100:2", PIPED, **more)
