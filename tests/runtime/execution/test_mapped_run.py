"""Mapped plans at work: every rank is its device, sends as the plan says, and learns the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from itertools import pairwise  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from execution_models import MODELS  # noqa: E402
from mapped_run_cases import alone, plan_of, profiled, train  # noqa: E402
from ranks import launched  # noqa: E402

from stagecut import InputError  # noqa: E402
from stagecut.runtime.accuracy.comparison import compare_run  # noqa: E402
from stagecut.runtime.execution.guard.identity import plan_hash  # noqa: E402
from stagecut.runtime.execution.options import RunOptions  # noqa: E402
from stagecut.runtime.execution.prepare import split_model  # noqa: E402
from stagecut.runtime.execution.recording_file import RunRecording  # noqa: E402
from stagecut.runtime.execution.trainer import _schedule as scheduled  # noqa: E402
from stagecut.runtime.simulate.plan_stages import chains  # noqa: E402


@pytest.mark.parametrize(
    ("model", "case", "schedule"),
    [
        # spare devices, a matching that crosses, all microbatches forward first
        ("gpt", ("mesh2d:2x3", [[4, 1], [3, 5]], [[1, 0]]), None),
        ("mlp", ("islands:2x2", [[2], [0], [3]], [[0], [0]]), "zb-h1"),
        ("unet", ("ring:3", [[2, 0, 1]], []), "1f1b"),
    ],
)
def test_losses_and_weights_are_those_of_one_process(
    model: str, case: tuple[Any, ...], schedule: str | None, tmp_path: Path
) -> None:
    plan = plan_of(model, *case)
    used = sorted(plan.solution.slots.ravel().tolist())
    workload = profiled(model).workload
    done, codes = launched(len(used), train, model, plan, workload, schedule, tmp_path / "said")
    assert codes == [0] * len(used)
    losses, weights = alone(model, plan.problem.replicas)
    peers: dict[int, set[int]] = {d: set() for d in used}
    for here, there in pairwise(chains(plan.solution)):
        for a, b in zip(here, there, strict=True):
            peers[a].add(b)
            peers[b].add(a)  # gradients
    names = set()
    for device, (found, own, targets) in zip(used, done, strict=True):
        assert found == pytest.approx(losses, rel=1e-5)
        assert {used[rank] for rank in targets} == peers[device]
        for name, x in own.items():
            torch.testing.assert_close(x, weights[name], rtol=1e-4, atol=1e-6)
        names |= own.keys()
    assert names == weights.keys()


def test_a_mapping_runs_as_often_as_it_says() -> None:
    plan = plan_of("mlp", "ring:4", [[0, 1], [2, 3]], [[0, 1]])
    workload = profiled("mlp").workload
    settled = RunOptions().settled(plan, workload)
    assert (settled.schedule, settled.microbatches) == ("gpipe", 4)
    with pytest.raises(InputError, match="replicas: the plan says them"):
        RunOptions(replicas=2).settled(plan, workload)


def test_another_number_of_processes_is_told_what_is_needed(tmp_path: Path) -> None:
    plan = plan_of("mlp", "ring:4", [[0, 1], [2, 3]], [[0, 1]])
    _, codes = launched(2, train, "mlp", plan, profiled("mlp").workload, None, tmp_path / "said")
    assert all(codes)
    assert "processes: 2; the plan uses 4 devices: start 4" in (tmp_path / "said").read_text()


def test_plans_with_replicas_elsewhere_are_other_plans() -> None:
    # a checkpoint's buffers and random numbers are those of a rank under the same plan alone
    slots = ([[0, 2], [1, 3]], [[0, 3], [1, 2]], [[0, 2], [1, 3]])
    first, other, again = (plan_of("mlp", "ring:4", each, [[0, 1]]) for each in slots)
    assert (first.placement == other.placement).all()
    assert plan_hash(first) == plan_hash(again) != plan_hash(other)


def test_replicas_take_asynchronous_schedules_and_their_recordings_no_report() -> None:
    plan, done = plan_of("mlp", "ring:4", [[0, 1], [2, 3]], [[0, 1]]), profiled("mlp")
    model, inputs = MODELS["mlp"]()
    prepared = split_model(plan, model, inputs, workload=done.workload)
    assert all(scheduled(prepared, "2bw", 8).of(rank) for rank in range(4))
    recording = RunRecording(plan.workload_fingerprint, plan.placement.tolist(), "gpipe", 4, ())
    with pytest.raises(InputError, match="its recording is compared with nothing"):
        compare_run(done.workload, plan, recording)
