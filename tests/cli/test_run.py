"""`stagecut run`, as a user starts it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from project import ROOT
from typer.testing import CliRunner

import stagecut
from stagecut import InputError, PlacementRules, Plan, Throughput, Workload
from stagecut.cli import app, run_command
from stagecut.commands.common.launchers import kept_together, narrow_for_launcher
from stagecut.commands.common.pose import ProblemOptions, Statement
from stagecut.instances import Placement
from stagecut.instances.formats.files import load_plan, save

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from ranks import program_on_ranks  # noqa: E402
from torch import nn  # noqa: E402

from stagecut.instances.pytorch.profile import profile  # noqa: E402
from stagecut.runtime.execution.recording_file import load_recording  # noqa: E402

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.b = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.c = nn.Linear(16, 4)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.c(self.b(self.a(x))), y)


def make(batch=3):
    def batches():
        for _ in range(8):
            x = torch.randn(batch, 8)
            yield x, x[:, :4]

    return Net(), batches()
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No torchrun around, and nothing left behind of a run in this process."""
    keys = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
    for key in keys:
        monkeypatch.delenv(key, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(7)
    yield
    assert not os.environ.keys() & {*keys}
    assert torch.get_num_threads() == 7
    torch.set_num_threads(threads)


def net(batch: int = 3) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    space: dict[str, object] = {}
    exec(MODEL, space)
    torch.manual_seed(0)
    model, batches = space["make"](batch)  # type: ignore[operator]
    return model, next(batches)


def planned(devices: int, training: bool = True) -> tuple[Workload, Plan]:
    model, inputs = net()
    workload = profile(model, inputs, training=training, estimate="h100", depth=1).workload
    layers = {"a": 0, "b": 0, "c": devices - 1, "model": devices - 1}
    device = [layers[str(node).split(".")[0]] for node in workload.ids]
    plan = Plan(
        workload.name, workload.fingerprint, stagecut.accelerators_and_cpus(devices),
        stagecut.Throughput(), Placement(np.array(device)), 1.0, 0.0, "test", workload.time_unit,
    )  # fmt: skip
    return workload, plan


def files(folder: Path, devices: int) -> Path:
    workload, plan = planned(devices)
    save(workload, folder / "w.json")
    save(plan, folder / "plan.json", workload)
    (folder / "model.py").write_text(MODEL)
    return folder / "plan.json"


def ran(folder: Path, processes: int, *options: str, torchrun: bool = True) -> list[str]:
    """Run a plan with a recording, under torchrun or as it would; return the lines printed."""
    words = ["run", "plan.json", "--model", "model.py:make", "--record", "run.json", *options]
    if not torchrun:
        done = program_on_ranks(processes, "stagecut", *words, folder=folder)
    else:
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={processes}", "-m", "stagecut", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_mapped_plan_runs_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(MODEL.replace("range(8)", "range(24)"))
    page = (ROOT / "docs" / "run.md").read_text().partition("## Mapped plans")[2]
    typed = page.partition("```sh\n")[2].partition("```")[0]
    tools = (
        f'stagecut() {{ "{sys.executable}" -m stagecut "$@"; }}\n'
        f'torchrun() {{ "{sys.executable}" -W ignore -m torch.distributed.run \\\n'
        '--standalone "$@"; }\n'
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    done = subprocess.run(
        ["bash", "-euc", tools + typed], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    losses = [line.partition("loss ")[2].split()[0] for line in done.stdout.splitlines()
              if line.startswith("step ")]  # fmt: skip
    assert len(losses) == 6
    assert [float(x.rstrip(",")) for x in losses[:3]] == pytest.approx(
        [float(x) for x in losses[3:]], rel=1e-4
    )


@pytest.mark.slow
def test_stages_of_tensor_degree_two_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the model's profile to the recording of two stages by two processes each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL.replace("batch=3", "batch=4"))
    profiled = "profile model.py:make --train --layers --degrees 1,2 --depth 1 --estimate h100"
    solved = "solve w.json --accelerators 4 --microbatches 4 --set degrees=[2],replicas=[1]"
    assert run_command([*profiled.split(), "-o", "w.json"]) == 0
    assert run_command([*solved.split(), "-o", "plan.json"]) == 0
    told = ran(tmp_path, 4, "--workload", "w.json", "--steps", "2", "--check")
    assert len([line for line in told if line.startswith("step ")]) == 2
    files = [str(tmp_path / name) for name in ("w.json", "plan.json", "run.json")]
    assert run_command(["report", *files]) == 0
    assert "step: predicted" in capsys.readouterr().out
    plan = load_plan(tmp_path / "plan.json", stagecut.load(tmp_path / "w.json"))
    assert [stage.degree for stage in plan.solution.stages] == [2, 2]  # type: ignore[union-attr]
    for rank in load_recording(tmp_path / "run.json").ranks[:4]:  # the cluster has a CPU, too
        actions = {str(d.action) for d in rank.actions}
        assert {f"{rank.rank // 2}{kind}{j}" for kind in "FB" for j in range(4)} <= actions


@pytest.mark.parametrize("torchrun", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_train(torchrun: bool, tmp_path: Path) -> None:
    files(tmp_path, 2)
    asked = ("--steps", "3", "--microbatches", "4", "--workload", "w.json", "--check")
    told = ran(tmp_path, 2, *asked, torchrun=torchrun)
    assert len([line for line in told if line.startswith("step ")]) == 2  # the inputs end
    assert "the inputs ended after 2 steps" in told
    assert "checked: loss and gradients of the first step are those of one process" in told
    recording = load_recording(tmp_path / "run.json")
    assert recording.steps == (0, 1)
    assert recording.schedule == "1f1b"
    for rank in recording.ranks:
        assert {str(d.action) for d in rank.actions} == {
            f"{rank.rank}STEP",
            *(f"{rank.rank}{kind}{j}" for kind in "FB" for j in range(4)),
        }


@pytest.mark.usefixtures("alone")
def test_one_device_needs_no_torchrun() -> None:
    workload, plan = planned(1)
    model, inputs = net()
    before = model(*inputs).item()
    steps = stagecut.run(
        plan, model, inputs, workload=workload, steps=3, microbatches=2, learning_rate=0.1
    )
    assert [step.number for step in steps] == [0, 1, 2]
    assert steps[0].loss == pytest.approx(before)
    assert steps[2].loss < steps[1].loss < steps[0].loss


@pytest.mark.usefixtures("alone")
def test_a_run_begins_with_given_weights(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    plan, weights, kept = files(tmp_path, 1), tmp_path / "weights.pt", tmp_path / "kept"
    model, _ = net()
    torch.save({name: torch.zeros_like(x) for name, x in model.state_dict().items()}, weights)
    base = ["run", str(plan), "--model", f"{tmp_path / 'model.py'}:make", "--steps", "1"]
    base += ["--microbatches", "2", "--set", "threads=1", "--weights"]
    assert run_command([*base, str(weights), "--checkpoint", str(kept), "--lr", "0"]) == 0
    merged = stagecut.merge_checkpoint(kept)
    assert merged.keys() == model.state_dict().keys()
    assert not any(value.any() for value in merged.values())
    torch.save({}, weights)
    capsys.readouterr()
    assert run_command([*base, str(weights)]) == 2
    error = capsys.readouterr().err
    assert "not this model's weights: Missing key(s)" in error
    assert len(error.splitlines()) == 1


@pytest.mark.usefixtures("alone")
def test_inference_gives_the_loss_and_changes_nothing() -> None:
    workload, plan = planned(1, training=False)
    model, inputs = net()
    steps = stagecut.run(plan, model, inputs, workload=workload, steps=2, microbatches=2)
    assert steps[0].loss == steps[1].loss == pytest.approx(model.eval()(*inputs).item())


def test_a_plan_that_is_not_there_is_named_before_its_model(capsys: pytest.CaptureFixture) -> None:
    assert run_command(["run", "nosuch.json"]) == 2
    assert capsys.readouterr().err == "error: nosuch.json: no such file; check the path\n"


@pytest.mark.usefixtures("alone")
def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path) -> None:
    path = files(tmp_path, 2)
    workload, plan = planned(2)
    model, inputs = net()
    with pytest.raises(InputError, match="torchrun --nproc-per-node 2 -m stagecut run"):
        stagecut.run(path, model, inputs)
    with pytest.raises(InputError, match="needs its workload"):
        stagecut.run(plan, model, inputs)
    with pytest.raises(InputError, match="made for another model"):
        stagecut.run(path, nn.Sequential(nn.Linear(8, 4)), inputs[:1])
    with pytest.raises(InputError, match=r"has output_bytes 192, and in the model 320; .*--batch"):
        stagecut.run(plan, *net(5), workload=workload)
    with pytest.raises(InputError, match=r"'single' is not one of gpipe, .*, pipedream, 2bw"):
        stagecut.run(path, model, inputs, schedule="single")
    for rate in (-1.0, math.nan):
        with pytest.raises(InputError, match="lr: "):
            stagecut.run(path, model, inputs, learning_rate=rate)
    with pytest.raises(InputError, match="optimizer: 'adagrad' is not one of sgd"):
        stagecut.run(path, model, inputs, optimizer="adagrad")
    with pytest.raises(InputError, match="record: give the workload"):
        stagecut.run(path, model, inputs, record=tmp_path / "run.json")


@pytest.mark.usefixtures("alone")
def test_microbatches_are_as_traced() -> None:
    workload, plan = planned(1)
    model, (x, y) = net()
    with pytest.raises(InputError, match=r"x is 2×8 float32; every microbatch must be 3×8 float32"):
        stagecut.run(plan, model, iter([(x, y), (x[:2], y[:2])]), workload=workload, microbatches=1)


class Pair(nn.Module):
    """Takes inputs by name, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor, power: int) -> torch.Tensor:
        return (self.layer(x) - y).abs().pow(power).mean()


@pytest.mark.usefixtures("alone")
def test_inputs_by_name_in_any_order() -> None:
    model, x, y = Pair(), torch.randn(2, 4), torch.randn(2, 4)
    workload = profile(model, (), {"x": x, "y": y, "power": 3}, estimate="h100").workload
    problem = stagecut.Throughput()
    plan = stagecut.solve(
        workload, stagecut.accelerators_and_cpus(1), problem, method="greedy"
    ).plan
    expected = model(x, y, 3).item()
    given = iter([{"x": x, "y": y, "power": 3}, {"power": 3, "y": y, "x": x}])
    steps = stagecut.run(plan, model, given, workload=workload, steps=2, microbatches=1)
    assert [step.loss for step in steps] == pytest.approx([expected, expected])
    given = iter([{"x": x, "y": y, "power": 3}, {"x": x, "y": y, "power": 2}])
    with pytest.raises(InputError, match="2 in place of 3"):
        stagecut.run(plan, model, given, workload=workload, steps=2, microbatches=1)


class Decides(nn.Module):
    """Its own code looks at numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) if x.sum() > 0 else self.a(-x)


def test_what_cannot_run_is_said_before_planning(tmp_path: Path) -> None:
    x = torch.ones(3, 8)
    done = profile(Decides(), (x,), estimate="h100")
    assert "can be planned but not run: move the code" in done.notes[0]
    save(done.workload, tmp_path / "w.json")
    asked = ["solve", str(tmp_path / "w.json"), "--accelerators", "2", "--method", "greedy"]
    said = CliRunner().invoke(app, [*asked, "--for", "run", "-o", str(tmp_path / "p.json")])
    assert said.exit_code == 0, said.output
    assert "depends on numbers (test_run.py" in " ".join(said.stderr.split())
    assert "a module of its own" in " ".join(said.stderr.split())
    plan = load_plan(tmp_path / "p.json", done.workload)
    assert len(set(plan.placement.tolist())) == 1
    two = np.minimum(np.arange(done.workload.n), 1)
    apart = replace(plan, solution=Placement(two))
    with pytest.raises(InputError, match="a module of its own"):
        stagecut.split_model(apart, Decides(), (x,), workload=done.workload)
    model = nn.Sequential(Decides(), nn.Linear(8, 2))  # a module of its own
    assert kept_together(profile(model, (x,), estimate="h100").workload) == ("", "")
    for target in ("run", "python"):
        with pytest.raises(InputError, match=f"--for {target}: .* is of no PyTorch model"):
            narrow_for_launcher(
                Statement("throughput", {}, {}),
                ProblemOptions(launcher=target),
                stagecut.load("gpt2-xl"),
            )


class Branches(nn.Module):
    """Its own code depends on numbers, and it uses a parameter, modules and a list of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.ones(8))
        self.several = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        positive = x.sum() > 0
        for layer in self.several:
            x = layer(x).tanh()
        x = self.one(x) * self.scale if positive else self.other(x)
        return (x - y).square().mean()


@pytest.mark.usefixtures("alone")
def test_a_model_whose_own_code_depends_on_numbers_trains_whole() -> None:
    """Both ways through its code are taken, with the losses of a loop without Stagecut."""
    torch.manual_seed(1)
    batches = [(torch.randn(4, 8) + sign, torch.randn(4, 8)) for sign in (3, -3, 3, -3)]
    workload = profile(Branches(), batches[0], training=True, estimate="h100").workload
    pattern, _ = kept_together(workload)
    cluster = workload.cluster.with_counts(accelerators=2, cpus=0)
    rules = PlacementRules(together=((pattern,),))
    plan = stagecut.solve(workload, cluster, Throughput(placement_rules=rules)).plan
    assert plan is not None
    prepared = stagecut.split_model(plan, Branches(), batches[0], workload=workload)
    (piece,) = prepared.pieces
    assert set(piece.parameters) == {name for name, _ in Branches().named_parameters()}
    done = stagecut.run(
        plan, Branches(), iter(batches), workload=workload, steps=4, microbatches=1,
        optimizer="sgd", learning_rate=0.5,
    )  # fmt: skip
    model = Branches()
    optimizer, losses, ways = torch.optim.SGD(model.parameters(), lr=0.5), [], set()
    model.one.register_forward_hook(lambda *_: ways.add("one"))
    model.other.register_forward_hook(lambda *_: ways.add("other"))
    for x, y in batches:
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert ways == {"one", "other"}
    assert [step.loss for step in done] == pytest.approx(losses, rel=1e-6)
