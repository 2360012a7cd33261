"""`stagecut.plan`: a model becomes a planned pipeline in one call."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from execution_models import MODELS  # noqa: E402
from torch import nn  # noqa: E402

import stagecut  # noqa: E402
from stagecut import InfeasibleError, InputError, Link, StagecutError  # noqa: E402
from stagecut.api import plan_model  # noqa: E402
from stagecut.instances.pytorch import operator_times  # noqa: E402


def free(devices: int) -> stagecut.Cluster:
    """Devices whose links cost nothing, so that small models are cut, too."""
    kind = stagecut.DeviceKind("gpu", devices, times="accelerator", link=Link(0.0, 1e18))
    return stagecut.Cluster((kind,))


@pytest.mark.parametrize("model", ["mlp", "gpt", "resnet"])
@pytest.mark.parametrize("training", [True, False])
def test_its_stages_one_after_the_other_are_the_model(model: str, training: bool) -> None:
    made, example = MODELS[model]()
    made.train(training)
    planned = stagecut.plan(made, example, devices=free(2), estimate="h100")
    assert planned.plan.problem.name == ("pipeline" if training else "throughput")
    stages = planned.stages(made)
    assert [stage.number for stage in stages] == list(range(len(stages))) == [0, 1]
    values = example
    for stage in stages:
        assert [(x.shape, x.dtype) for x in stage.takes] == [(x.shape, x.dtype) for x in values]
        out = stage(*values)
        values = out if isinstance(out, tuple) else (out,)
        assert [(x.shape, x.dtype) for x in stage.gives] == [(x.shape, x.dtype) for x in values]
        if training:
            assert [x.requires_grad for x in stage.gives] == [x.requires_grad for x in values]
    expected = made(*example)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip(values, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_it_says_what_it_comes_to(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    inputs = torch.zeros(2048, 1024)
    planned = stagecut.plan(model, inputs, devices=2, estimate="h100")
    assert planned.result.status == "optimal"
    report = planned.report()
    for words in ("per iteration of 8 microbatches", "per sample (2048 in a microbatch)",
                  "× one device", "(optimal)", "peak memory", "h100-sxm 1"):  # fmt: skip
        assert words in report
    assert planned.plot(tmp_path / "plan.png").stat().st_size > 1000
    assert planned.explain(seconds=0).limiting
    assert "h100" in planned._repr_html_() or "objective" in planned._repr_html_()
    planned.save(tmp_path / "plan.json")
    again = stagecut.split_model(tmp_path / "plan.json", model, (inputs,))
    assert len(stagecut.stage_modules(again)) == len(planned.stages(model))


def test_the_report_has_the_stages_in_the_order_of_the_pipeline() -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)))
    problem = stagecut.PipelineJob(12, placement_rules=stagecut.PlacementRules(apart=(("*",),)))
    planned = stagecut.plan(
        model, torch.zeros(4, 16), devices=free(12), estimate="h100", problem=problem, depth=1,
        limits=stagecut.Limits(gap=0.9),
    )  # fmt: skip
    rows = planned.report().splitlines()[1:13]
    assert [row.split()[0] for row in rows] == [str(stage) for stage in range(12)]


def test_memory_is_that_of_the_accelerator_unless_it_is_said() -> None:
    model, inputs = nn.Linear(64, 64), torch.zeros(4, 64)
    measured = stagecut.plan(model, inputs, devices=1)
    assert "not limited here" in measured.report()
    estimated = stagecut.plan(model, inputs, devices=1, estimate="h100")
    assert "not limited here" not in estimated.report()
    small = stagecut.Cluster((stagecut.DeviceKind("gpu", 1, 2.0**30, times="accelerator"),))
    given = stagecut.plan(model, inputs, devices=small, estimate="h100")
    assert "1.00 GiB" in given.report()


@pytest.mark.parametrize("tied", [False, True])
def test_a_plan_that_is_kept_is_found_again(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [nn.Linear(64, 64) for _ in range(4)]
    if tied:
        layers[3].weight = layers[0].weight
    model, inputs, folder = nn.Sequential(*layers), torch.zeros(8, 64), tmp_path / "a" / "kept"
    asked = {"devices": free(2), "estimate": "h100", "keep": folder}
    first = stagecut.plan(model, inputs, problem=stagecut.PipelineJob(4), **asked)
    nothing = "stagecut.api.plan_model.profile", "stagecut.api.plan_model.solve"
    for name in nothing:
        monkeypatch.setattr(name, None)
    again = stagecut.plan(model, inputs, problem=stagecut.PipelineJob(4), **asked)
    assert again.plan.placement.tolist() == first.plan.placement.tolist()
    assert (again.plan.objective, again.result.status) == (
        first.plan.objective,
        first.result.status,
    )
    assert again.workload.fingerprint == first.workload.fingerprint
    assert "nothing was measured or searched" in again.report()
    assert [s.number for s in again.stages(model)] == [s.number for s in first.stages(model)]
    for other, said in (
        ({"problem": stagecut.PipelineJob(8)}, "another value of problem"),
        ({"devices": free(3)}, "another value of devices"),
        ({"problem": None}, "another value of problem and training"),
    ):
        model.train("problem" not in other or other["problem"] is not None)
        with pytest.raises(
            InputError, match=f"keep: .*plan.json was made for {said}; name another"
        ):
            stagecut.plan(model, inputs, **({"problem": stagecut.PipelineJob(4)} | asked | other))
    with pytest.raises(InputError, match="the plan was made for another model"):
        again.stages(nn.Sequential(*(nn.Linear(64, 64) for _ in range(5))))
    (tmp_path / "file").touch()
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"keep: .*file"):
        stagecut.plan(model, inputs, devices=1, estimate="h100", keep=tmp_path / "file" / "x")


class Decides(nn.Module):
    """Its own code depends on numbers, so that it can be planned but not cut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x if x.sum() > 0 else -x


def test_what_cannot_run_is_refused_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.zeros(8, 64)
    with monkeypatch.context() as patch:
        patch.setattr("stagecut.api.plan_model.solve", None)
        with pytest.raises(InputError, match=r"Decides: .*planned but not run: .*a class that is "):
            stagecut.plan(Decides(), inputs, devices=free(2), estimate="h100")
    one = stagecut.plan(Decides().eval(), inputs, devices=free(1), estimate="h100")
    assert len(one.stages(Decides())) == 1


def test_training_plans_and_requests() -> None:
    model, inputs = MODELS["gpt"]()
    problem = stagecut.PipelineJob(4, "stream", bandwidth=1e12, degrees=(1,))
    staged = stagecut.plan(
        model, inputs, devices=2, problem=problem, estimate="h100", limits=stagecut.Limits(nodes=50)
    )
    assert staged.workload.layers is not None
    assert "busy" in staged.report()
    model.eval()
    request = stagecut.plan(
        model, inputs, devices=2, problem=stagecut.Latency(), estimate="h100", depth=1
    )
    assert "for one request" in request.report()


@pytest.mark.parametrize("devices", [1, 2, 16])
def test_it_measures_with_the_threads_of_each_process(
    devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_times, "BUDGET_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(plan_model, "threads_per_process", lambda count: 3 if count == 2 else 1)
    model, before = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.get_num_threads()
    limits = stagecut.Limits(seconds=5)
    planned = stagecut.plan(model, torch.zeros(4, 8), devices=devices, limits=limits)
    assert planned.workload.provenance["threads"] == ("3" if devices == 2 else "1")
    assert torch.get_num_threads() == before


def test_it_refuses_in_one_line() -> None:
    model, inputs = nn.Linear(64, 64), torch.zeros(4, 64)
    with pytest.raises(InputError, match="inputs: give those of one microbatch"):
        stagecut.plan(model, devices=2)
    small = stagecut.Cluster((stagecut.DeviceKind("gpu", 2, 100.0, times="accelerator"),))
    with pytest.raises(InfeasibleError, match=r"Linear: .* than any device"):
        stagecut.plan(model, inputs, devices=small)
    with pytest.raises(InputError, match="no such file"):
        stagecut.plan("nowhere.py:make", devices=2)
    with pytest.raises(InputError, match='devices: "2"; give their number'):
        stagecut.plan(model, inputs, devices="2")  # type: ignore[call-overload]
    with pytest.raises(InputError, match=r"on its inputs: .* to give a list, write \(\[…\],\)"):
        stagecut.plan(model, [inputs, inputs], devices=2, estimate="h100")
    with pytest.raises(StagecutError, match=r"call model\.train"):
        stagecut.plan(
            model.eval(), inputs, devices=2, problem=stagecut.PipelineJob(schedule="stream")
        )
    planned = stagecut.plan(model, inputs, devices=1, estimate="h100")
    with pytest.raises(InputError):
        planned.stages(nn.Linear(32, 32))
