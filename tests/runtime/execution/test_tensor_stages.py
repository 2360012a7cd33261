"""Training plans with tensor degrees inside stages at work, equal to one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stagecut
from stagecut import Cluster, DeviceKind, InputError, Link, PipelineJob, solve
from stagecut.api import layers_by_degree

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from degree_cases import Shape, alone, clipped, make, plan_files, profiled, run_rank  # noqa: E402
from ranks import launched, on_ranks  # noqa: E402

from stagecut.runtime.accuracy.comparison import compare_run  # noqa: E402
from stagecut.runtime.execution.prepare import split_model, training_pieces  # noqa: E402
from stagecut.runtime.execution.recording_file import load_recording  # noqa: E402
from stagecut.runtime.execution.sharded.collectives import MeshPosition  # noqa: E402
from stagecut.runtime.execution.sharded.stage import ShardedStage  # noqa: E402
from stagecut.runtime.schedules import Kind  # noqa: E402


def ran(name: str, shape: Shape, folder: Path, **options: Any) -> list[Any]:
    """Run the plan in a folder; return what each process has."""
    done, codes = launched(sum(d * t for d, t in shape), run_rank, name, folder, options)
    assert set(codes) == {0}
    return done


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("language", ((1, 2), (1, 2)), {}),
        ("language", ((2, 2), (1, 1)), {"recompute": True}),
        ("vision", ((1, 1), (1, 2)), {"schedule": "zb-h1"}),
    ],
    ids=str,
)
def test_it_trains_as_one_process_does(
    name: str, shape: Shape, options: dict[str, Any], tmp_path: Path
) -> None:
    workload, plan = plan_files(name, shape, tmp_path)
    pieces = split_model(plan, *make_one(name), workload=workload).pieces
    done = ran(name, shape, tmp_path, steps=2, record=tmp_path / "run.json", **options)
    losses, state = alone(name, 2)
    teams = [p for p, (d, t) in enumerate(shape) for _ in range(d * t)]
    trained = set()
    for p, (told, found) in zip(teams, done, strict=True):
        assert told == pytest.approx(losses, rel=1e-5)
        module = pieces[p].module
        here = {*dict(module.named_parameters()), *dict(module.named_buffers())}
        for key in here:
            scale = float(state[key].abs().max())
            torch.testing.assert_close(found[key], state[key], rtol=1e-5, atol=1e-5 * scale)
        trained |= here
    assert {n for n, _ in make(name)[0].named_parameters()} <= trained
    recording = load_recording(tmp_path / "run.json")
    found = compare_run(workload, plan, recording)
    assert found.measured_iteration_s > 0
    assert set(found.stages["stage"]) == {0, 1}
    reduced = {d.action.stage for d in recording.done(1) if d.action.kind == Kind.REDUCE_GRAD}
    assert reduced == {p for p, (d, _) in enumerate(shape) if d > 1}


@pytest.mark.parametrize(
    ("name", "shape"), [("language", ((2, 2), (1, 1))), ("vision", ((1, 1), (1, 2)))], ids=str
)
def test_gradients_are_clipped_by_the_norm_of_one_process(
    name: str, shape: Shape, tmp_path: Path
) -> None:
    plan_files(name, shape, tmp_path)
    done = on_ranks(sum(d * t for d, t in shape), clipped, name, tmp_path)
    model, batches = make(name)
    for batch in batches:
        (model.train()(*batch) / len(batches)).backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01))
    wanted = dict(model.named_parameters())
    for told, found in done:
        assert told == pytest.approx(norm, rel=1e-5)
        for key, gradient in found.items():
            whole = wanted[key].grad
            assert whole is not None
            assert (gradient - whole).norm() <= 1e-5 * whole.norm() + 1e-9, key


def make_one(name: str) -> tuple[Any, ...]:
    """Return a model, and its first microbatch."""
    model, batches = make(name)
    return model, batches[0]


def test_a_checkpoint_goes_on_with_other_degrees(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    losses, state = alone("language", 2)
    found: list[float] = []
    for steps, shape in ((1, ((1, 2), (1, 1))), (2, ((1, 1), (1, 2)))):
        folder = tmp_path / str(shape)
        plan_files("language", shape, folder)
        done = ran("language", shape, folder, steps=steps, checkpoint=kept, resume=steps > 1)
        found += done[0][0]
    assert found == pytest.approx(losses, rel=1e-5)
    merged = stagecut.merge_checkpoint(kept)
    assert merged.keys() == state.keys()
    for key, value in merged.items():
        torch.testing.assert_close(value, state[key], rtol=1e-4, atol=1e-5)


def test_planned_shardings_are_those_of_the_layers_that_run() -> None:
    done, link = profiled("language"), Link(1e-9, 1e12)
    workload = layers_by_degree(done, (1, 2), estimate="h100", link=link)
    cluster = Cluster((DeviceKind("gpu", 4, 1e12, link=link),))
    problem = PipelineJob(microbatches=4, bandwidth=1e12, degrees=(2,), replicas=(1,))
    plan = solve(workload, cluster, problem).plan
    assert plan is not None
    cut = training_pieces(make_one("language")[0], done, workload, plan)
    place = MeshPosition((2,), (0,), ("",), torch.device("cpu"))
    assert cut.layers
    for p, layers in cut.layers.items():
        stage = ShardedStage(cut.pieces[p], layers, cut.tensor_groups.tied, place)
        assert stage.parts.parameters.keys() == cut.pieces[p].parameters.keys()
        other = [(layer, f"{sharding} B->B") for layer, sharding in layers]
        with pytest.raises(InputError, match="profile it again"):
            ShardedStage(cut.pieces[p], other, cut.tensor_groups.tied, place)


def test_what_is_not_known_or_not_the_models_is_one_line(tmp_path: Path) -> None:
    shape = ((1, 2), (1, 1))
    workload, plan = plan_files("vision", shape, tmp_path)
    layers, (model, inputs) = workload.layers, make_one("vision")
    assert layers is not None
    unknown = replace(workload, layers=replace(layers, sharding=()))
    other = replace(plan, workload_fingerprint=unknown.fingerprint)
    with pytest.raises(InputError, match="profile with --degrees and give --workload"):
        training_pieces(model, profiled("vision"), unknown, other)
    with pytest.raises(InputError, match="does not say how its layers are split"):
        split_model(tmp_path / "plan.json", model, inputs)
    cut = training_pieces(model, profiled("vision"), workload, plan)
    assert cut.tensor_groups.members == ((0, 1),)
