"""Predicted against measured, and calibration: on runs whose times are known exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from msgspec import structs
from pipelines import plan_of
from recordings import recording_of
from typer.testing import CliRunner

from stagecut import (
    Cluster,
    DeviceKind,
    InputError,
    Link,
    PipelineJob,
    Plan,
    Workload,
    load,
    save,
)
from stagecut.commands.report import report
from stagecut.instances import Layers, Stage
from stagecut.instances.model.solution import in_stages
from stagecut.runtime.accuracy.chart import MEASURED, comparison_trace, draw_comparison
from stagecut.runtime.accuracy.comparison import calibrate, compare_run, predicted_after
from stagecut.runtime.execution.chain import executed_stages
from stagecut.runtime.execution.recording_file import (
    RankRecording,
    RecordedAction,
    load_recording,
    save_recording,
)
from stagecut.runtime.simulate.network import point_to_point
from stagecut.runtime.simulate.simulator import simulate, simulate_stages


def planned(name: str = "unet-training", parts: int = 3, mixed: bool = False):
    """Return a shipped workload with a plan on so many of five devices."""
    workload = load(name)
    layers = list(dict.fromkeys(node.removesuffix(".backward") for node in workload.ids))
    where = {node: k * parts // len(layers) for k, node in enumerate(layers)}
    if mixed:
        where = {node: k * 4 // len(layers) % 2 for k, node in enumerate(layers)}
    devices = [2 * where[node.removesuffix(".backward")] for node in workload.ids]
    cluster = Cluster((replace(workload.cluster.kinds[0], count=5),))
    return workload, plan_of(workload, cluster, np.array(devices))


def scaled(workload: Workload, seed: int) -> Workload:
    """Return the workload as it might be in truth: every node's time another."""
    rng = np.random.default_rng(seed)
    times = {name: t * rng.uniform(0.5, 2.0, len(t)) for name, t in workload.times.items()}
    return replace(workload, times=times)


def truth(workload: Workload, plan: Plan, seed: int, schedule: str = "1f1b", **options):
    """Return the simulation of the plan with such times."""
    real = scaled(workload, seed)
    made = replace(plan, workload_fingerprint=real.fingerprint)
    return run_as(real, made, schedule, **options)


def run_as(workload: Workload, plan: Plan, schedule: str = "1f1b", share: float = 0.5, **options):
    """Return the simulation of what the runtime runs."""
    return simulate_stages(
        executed_stages(workload, plan, weight_share=share), schedule, 4, **options
    )


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_a_run_that_is_as_predicted_has_no_error(schedule: str, mixed: bool) -> None:
    workload, plan = planned(mixed=mixed)
    recording = recording_of(run_as(workload, plan, schedule), plan)
    found = compare_run(workload, plan, recording)
    assert np.abs(found.actions["error"]).max() < 1e-9
    assert np.abs(found.stages["error"]).max() < 1e-9
    assert found.error == pytest.approx(0, abs=1e-2)  # transfers before and after are not recorded
    assert found.steps == (1, 2)
    assert found.optimizer_s == 0


def training_plan() -> tuple[Workload, Plan]:
    """Return three layers, and a plan whose first stage has replicas of tensor degree 2."""
    layers = Layers(
        node=np.arange(3), degree=np.array([2, 2, 1]), label=("tensor",) * 3,
        recomputes=np.array([False, False, True]), time=np.array([3.0, 4.0, 5.0]),
        weight_bytes=np.ones(3), bytes_per_microbatch=np.ones(3), fixed_bytes=np.ones(3),
        edge_bytes=np.ones(2), sync_bytes=({},) * 3, microbatches=8, bandwidth=2.0,
    )  # fmt: skip
    workload = Workload(
        name="layers", ids=("a", "b", "c"), edges=np.array([[0, 1], [1, 2]]),
        times={"accelerator": np.ones(3)}, memory_bytes=np.zeros(3), transfer=np.zeros(3),
        layers=layers, time_unit="ms",
    )  # fmt: skip
    cluster = Cluster((DeviceKind("gpu", 5),))
    stages = in_stages([Stage((0, 1), (0, 1), 2, 2), Stage((2,), (2,), 1, 1)], cluster)
    plan = Plan(
        workload.name, workload.fingerprint, cluster, PipelineJob(), stages, 1.0, 0.0, "test", "ms"
    )
    return workload, plan


def test_a_training_plan_that_runs_as_predicted_has_no_error(tmp_path: Path) -> None:
    workload, plan = training_plan()
    run = simulate(workload, plan, "1f1b", 8)
    found = compare_run(workload, plan, recording_of(run, plan))
    assert np.abs(found.actions["error"]).max() < 1e-9
    assert found.predicted_iteration_s == pytest.approx(run.makespan / 1e3)
    assert "REDUCE_GRAD" in set(found.simulation.actions_to_pandas()["kind"])
    draw_comparison(found, tmp_path / "both.png")
    measured = {e["name"] for e in comparison_trace(found)["traceEvents"] if e["pid"] == MEASURED}
    assert {"0F0", "1B7"} <= measured
    with pytest.raises(InputError, match="calibrate: a training plan"):
        calibrate(workload, plan, found, "r.json")


def test_errors_are_those_of_the_times() -> None:
    workload, plan = planned()
    slower = replace(workload, times={k: 2 * t for k, t in workload.times.items()})
    made = replace(plan, workload_fingerprint=slower.fingerprint)
    run = run_as(slower, made)
    found = compare_run(workload, plan, recording_of(run, plan))
    assert found.kinds["error"].to_numpy() == pytest.approx(-0.5)
    assert -0.5 < found.error < -0.3  # transfers are as they were
    assert list(found.kinds.columns[:4]) == ["stage", "kind", "predicted_s", "measured_s"]
    assert len(found.actions) == 2 * 3 * 4
    assert set(found.actions["device"]) == {plan.cluster.devices[d].name for d in (0, 2, 4)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_calibrated_times_predict_the_run_exactly(schedule: str, mixed: bool, seed: int) -> None:
    workload, plan = planned(mixed=mixed)
    network = point_to_point(5, Link(0.0, 1e15))  # what is moved takes no time: only times count
    run = truth(workload, plan, seed, schedule, network=network)
    found = compare_run(workload, plan, recording_of(run, plan), network=network)
    assert abs(found.error) > 1e-3
    done = calibrate(workload, plan, found, "r.json")
    after = predicted_after(done, plan, found)
    assert after.error == pytest.approx(0, abs=1e-6)
    assert np.abs(after.actions["error"]).max() < 1e-9
    real = scaled(workload, seed).times["accelerator"]
    for passes in found.simulation.stages.nodes:
        for nodes in map(list, passes):
            new, old = (
                done.workload.times["accelerator"][nodes],
                workload.times["accelerator"][nodes],
            )
            assert new.sum() == pytest.approx(real[nodes].sum())
            assert new * old.sum() == pytest.approx(old * new.sum())  # in proportion
    assert done.workload.times["cpu"].tolist() == workload.times["cpu"].tolist()
    assert "2 steps of r.json" in done.workload.provenance["calibrated"]
    assert done.weight_share is None
    assert done.workload.fingerprint != workload.fingerprint


def test_the_weights_share_of_the_backward_pass_is_found() -> None:
    workload, plan = planned()
    run = run_as(workload, plan, "zb-h1", 0.3)
    found = compare_run(workload, plan, recording_of(run, plan))
    assert found.error != pytest.approx(0, abs=1e-3)
    done = calibrate(workload, plan, found, "r.json")
    assert done.weight_share == pytest.approx(0.3)
    after = predicted_after(done, plan, found)
    assert np.abs(after.actions["error"]).max() < 1e-9
    assert abs(after.error) < abs(found.error)


def test_calibration_brings_a_noisy_run_nearer() -> None:
    workload, plan = planned()
    run = truth(workload, plan, 7)
    recording = recording_of(run, plan, 9, noise=0.05, warm_up=5.0, optimizer_s=1e-3)
    found = compare_run(workload, plan, recording)
    assert found.optimizer_s == pytest.approx(1e-3)
    assert found.kinds["spread"].between(0.001, 0.3).all()
    done = calibrate(workload, plan, found, "r.json")
    after = predicted_after(done, plan, found)
    assert abs(after.error) < min(abs(found.error), 0.03)


def test_a_pass_without_predicted_time_gets_what_was_measured() -> None:
    workload, plan = planned()
    nothing = {k: np.where(workload.backward, t, 0.0) for k, t in workload.times.items()}
    free = replace(workload, times=nothing)
    made = replace(plan, workload_fingerprint=free.fingerprint)
    run = run_as(workload, plan)
    found = compare_run(free, made, recording_of(run, plan))
    assert found.kinds["error"].tolist()[1::2] == pytest.approx([-1.0] * 3)
    done = calibrate(free, made, found, "r.json")
    forward = ~workload.backward
    total = done.workload.times["accelerator"][forward].sum()
    assert total == pytest.approx(workload.times["accelerator"][forward].sum())


def test_an_order_of_its_own_is_simulated_as_recorded() -> None:
    workload, plan = planned()
    run = run_as(workload, plan, "gpipe")
    recording = structs.replace(recording_of(run, plan), schedule="mine")
    found = compare_run(workload, plan, recording)
    assert found.simulation.schedule.name == "mine"
    assert found.predicted_iteration_s == pytest.approx(run.makespan * found.scale)


def changed(recording, change) -> object:
    """Return the recording with each rank's actions changed."""
    ranks = tuple(
        RankRecording(r.rank, r.host, r.device, tuple(change(list(r.actions))))
        for r in recording.ranks
    )
    return structs.replace(recording, ranks=ranks)


def test_what_does_not_belong_together_is_refused() -> None:
    workload, plan = planned()
    recording = recording_of(run_as(workload, plan), plan)
    other = planned(parts=2)[1]
    with pytest.raises(InputError, match="another plan"):
        compare_run(workload, other, recording)
    with pytest.raises(InputError, match="step 1: the run did not do"):
        compare_run(workload, plan, changed(recording, lambda own: own[:7] + own[9:]))
    extra = RecordedAction(1, "0W0", 0.0, 1.0)
    with pytest.raises(InputError, match="the simulation does not do 0W0"):
        compare_run(workload, plan, changed(recording, lambda own: [*own, extra]))
    for wrong in (-1, 5):
        with pytest.raises(InputError, match=r"^warm-up: .* from 0 to 2$"):
            compare_run(workload, plan, recording, warm_up=wrong)
    far = RecordedAction(2, "9F0", 0.0, 1.0)
    strange = changed(structs.replace(recording, schedule="mine"), lambda own: [*own, far])
    with pytest.raises(InputError, match="stages 0 to 2"):
        compare_run(workload, plan, strange)
    unknown = replace(workload, time_unit="unspecified", cluster=None, output_bytes=None)
    unit = replace(plan, workload_fingerprint=unknown.fingerprint)
    with pytest.raises(InputError, match="time unit"):
        compare_run(unknown, unit, recording)


def test_one_step_alone_counts() -> None:
    workload, plan = planned()
    recording = recording_of(run_as(workload, plan), plan, 1)
    assert compare_run(workload, plan, recording).steps == (0,)


@pytest.mark.parametrize("mixed", [False, True])
def test_pictures_and_traces_have_both_rows(tmp_path: Path, mixed: bool) -> None:
    workload, plan = planned(mixed=mixed)
    recording = recording_of(truth(workload, plan, 3), plan, optimizer_s=1e-3)
    found = compare_run(workload, plan, recording)
    for name in ("both.png", "both.svg"):
        draw_comparison(found, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000
    with pytest.raises(InputError, match=r"both\.xyz"):
        draw_comparison(found, tmp_path / "both.xyz")
    trace = json.loads(json.dumps(comparison_trace(found)))
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    measured = [e for e in slices if e["pid"] == MEASURED and "STEP" not in e["name"]]
    predicted = {e["name"] for e in slices if e["pid"] == 1}
    assert {e["name"] for e in measured} <= predicted
    assert len(measured) == len(found.actions)
    own = {row["microbatch"]: row for row in found.actions.to_dict("records") if row["stage"] == 0}
    first = next(e for e in measured if e["name"] == "0F0")
    assert first["ts"] == 0
    assert first["args"]["predicted_us"] == pytest.approx(1e6 * own[0]["predicted_s"], rel=1)
    assert {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"} >= {
        "predicted", f"measured, step {found.typical_step + 1}",
    }  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a workload, a plan and a recording."""
    workload, plan = planned()
    save(workload, tmp_path / "w.json")
    save(plan, tmp_path / "p.json", workload)
    recording = recording_of(truth(workload, plan, 1), plan, optimizer_s=1e-3)
    save_recording(recording, tmp_path / "r.json")
    return tmp_path


def run(folder: Path, *arguments: str):
    """Run the command in the folder."""
    app = typer.Typer()
    app.command()(report)
    words = [str(folder / name) for name in ("w.json", "p.json", "r.json")]
    return CliRunner().invoke(app, [*words, *arguments])


def test_the_command_writes_everything(files: Path) -> None:
    names = {"--plot": "b.png", "--trace": "t.json", "--csv": "a.csv", "--calibrate": "new.json"}
    options = [word for key, name in names.items() for word in (key, str(files / name))]
    done = run(files, *options)
    assert done.exit_code == 0, done.exception
    assert all((files / name).is_file() for name in names.values())
    assert "calibrated: predicted" in done.stdout
    assert "the optimizer's 1 ms come on top" in done.stdout
    assert "calibrated" in load(files / "new.json").provenance
    assert len((files / "a.csv").read_text().splitlines()) == 1 + 24


def test_json_says_the_same(files: Path) -> None:
    said = json.loads(run(files, "--json").stdout)
    iteration = said["iteration"]
    assert iteration["error"] == pytest.approx(
        iteration["predicted_s"] / iteration["measured_s"] - 1
    )
    assert [row["stage"] for row in said["stages"]] == [0, 1, 2]
    assert said["steps"] == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.pop("schedule"), "schedule is missing"),
        (lambda d: d.update(version=9), "newer Stagecut"),
        (lambda d: d.update(format="stagecut-plan"), "stagecut-recording"),
        (lambda d: d.update(microbatches=0), "microbatches is 0"),
        (lambda d: d.update(microbatches=3), "there are 3 microbatches"),
        (lambda d: d.update(ranks=[]), "no rank did anything"),
        (lambda d: d["ranks"].pop(0), "ranks[0] is of rank 1"),
        (lambda d: d["ranks"][0]["actions"][0].update(action="0F0junk"), "not an action"),
        (lambda d: d["ranks"][0]["actions"][0].update(end_s=-1.0), "before it begins"),
        (lambda d: d["ranks"][0]["actions"][0].update(step=-1), "actions[0]: step is -1"),
        (lambda d: d["ranks"][0]["actions"].append(d["ranks"][0]["actions"][0]), "occurs twice"),
        (lambda d: [r.update(actions=[]) for r in d["ranks"]], "no rank did anything"),
        (lambda d: d["ranks"][0].update(colour="red"), "unknown key"),
    ],
)
def test_broken_recordings_are_refused(files: Path, change, reason: str) -> None:
    data = json.loads((files / "r.json").read_text())
    change(data)
    (files / "r.json").write_text(json.dumps(data))
    with pytest.raises(InputError) as refused:
        load_recording(files / "r.json")
    assert str(refused.value).startswith(f"{files / 'r.json'}: ")
    assert reason in str(refused.value)


def test_recordings_are_read_as_they_were_written(files: Path) -> None:
    first = load_recording(files / "r.json")
    save_recording(first, files / "again.json")
    assert (files / "again.json").read_bytes() == (files / "r.json").read_bytes()
    assert first.steps == (0, 1, 2)
