"""From a model to a training plan that runs: layers, plan, simulation, processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from execution_models import MODELS  # noqa: E402
from ranks import launched  # noqa: E402
from training_run_cases import MICROBATCHES, alone, profiled, run_file  # noqa: E402

import stagecut  # noqa: E402
from stagecut import InputError, Plan, Workload  # noqa: E402
from stagecut.instances import PipelineJob, StagePlacement, layers_of  # noqa: E402
from stagecut.instances.formats.files import load, load_plan, save  # noqa: E402
from stagecut.instances.model.training_layers import training_layers  # noqa: E402
from stagecut.instances.pytorch.profile import profile  # noqa: E402
from stagecut.runtime.execution.prepare import split_model  # noqa: E402


def planned(name: str) -> tuple[Workload, Plan]:
    """Return the best plan on three devices; with at most two replicas a stage, so two stages."""
    workload = training_layers(profiled(name).workload)
    problem = PipelineJob(microbatches=MICROBATCHES, schedule="stream", replicas=(1, 2))
    result = stagecut.solve(workload, stagecut.accelerators_and_cpus(3), problem)
    assert result.plan is not None
    return workload, result.plan


def test_layers_have_all_that_the_whole_has() -> None:
    whole = profiled("mlp").workload
    workload = training_layers(whole)
    layers = layers_of(workload)
    forward = ~whole.backward
    plain, again = ~layers.recomputes, layers.recomputes
    assert workload.ids == tuple(np.array(whole.ids, object)[forward])
    times = whole.times["accelerator"]
    assert layers.time[plain].sum() == pytest.approx(times.sum())
    assert layers.time[again].sum() == pytest.approx(times.sum() + times[forward].sum())
    kept = whole.extra["activation_bytes"].sum()
    assert layers.bytes_per_microbatch[plain].sum() == pytest.approx(kept)
    resident = whole.memory_bytes.sum() - kept
    assert layers.fixed_bytes[plain].sum() == pytest.approx(resident)
    assert layers.fixed_bytes[again].sum() == pytest.approx(resident + kept)
    assert layers.weight_bytes[plain].sum() == pytest.approx(whole.extra["weight_bytes"].sum())
    for v, node in enumerate(workload.ids):
        own = [whole.index[node], whole.index.get(f"{node}.backward", whole.index[node])]
        assert layers.time[2 * v] == pytest.approx(times[list(set(own))].sum())
        entering = [whole.index[workload.ids[u]] for u in workload.predecessors[v]]
        assert whole.output_bytes is not None
        assert layers.bytes_per_microbatch[2 * v + 1] == whole.output_bytes[entering].sum()


def test_from_a_model_to_a_run_with_replicas(tmp_path: Path) -> None:
    workload, plan = planned("mlp")
    assert isinstance(plan.solution, StagePlacement)
    assert sorted(stage.replicas for stage in plan.solution.stages) == [1, 2]
    stagecut.verify(workload, plan)
    assert stagecut.simulate(workload, plan, "2bw").time_per_sample == pytest.approx(plan.objective)
    save(workload, tmp_path / "w.json")
    save(plan, tmp_path / "plan.json", workload)
    known = load(tmp_path / "w.json")
    model, example = MODELS["mlp"]()
    ready = split_model(load_plan(tmp_path / "plan.json", known), model, example, workload=known)
    assert sorted(map(len, ready.stages.replicas)) == [1, 2]
    assert ready.training
    done, codes = launched(3, run_file, str(tmp_path), "mlp")
    assert codes == [0, 0, 0]
    losses, wanted = alone("mlp")
    for told, own in done:
        assert told == pytest.approx([np.mean(list(losses.values()))], rel=1e-5)
        for name, grad in own.items():
            assert (grad - wanted[name]).norm() <= 1e-5 * wanted[name].norm(), name
    assert {name for _, own in done for name in own} == wanted.keys()


def test_what_cannot_be_layers_is_refused() -> None:
    model, example = MODELS["gpt"]()
    tied = profile(model, example, training=True, estimate="h100", depth=1, tied="colour").workload
    with pytest.raises(InputError, match=r"must share a device.*--tied copies"):
        training_layers(tied)
    forward = profile(model, example, estimate="h100", depth=1).workload
    with pytest.raises(InputError, match="no backward pass"):
        training_layers(forward)
    with pytest.raises(InputError, match="all of its nodes are of the backward pass"):
        training_layers(replace(forward, backward=np.ones(forward.n, np.bool_), ties=()))
    with pytest.raises(InputError, match="layers already"):
        training_layers(training_layers(profiled("gpt").workload))


def test_options_that_a_training_plan_does_not_take_are_refused(tmp_path: Path) -> None:
    workload, plan = planned("mlp")
    model, example = MODELS["mlp"]()
    for options, said in (
        ({"replicas": 2}, "replicas: the plan says them"),
        ({"record": tmp_path / "run.json", "schedule": "2bw"}, "no recording of the schedule 2bw"),
    ):
        with pytest.raises(InputError, match=said):
            stagecut.run(plan, model, example, workload=workload, **options)
