"""Shardings at work: losses, gradients, statistics and bytes on 2, 4 and 2 × 2 processes."""

from __future__ import annotations

import json
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import pytest

import stagecut
from stagecut import InputError
from stagecut.cli import run_command

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from ranks import DEVICE, launched, on_ranks, program_on_ranks  # noqa: E402
from sharded_models import MODELS  # noqa: E402
from sharded_workers import (  # noqa: E402
    convert_complex,
    devices_of,
    run_random,
    train_and_go_on,
)

from stagecut.instances.pytorch.factory import make  # noqa: E402
from stagecut.runtime.accuracy.comparison import compare_sharded_run  # noqa: E402
from stagecut.runtime.execution.options import RunOptions  # noqa: E402
from stagecut.runtime.execution.recording_file import (  # noqa: E402
    RecordedEvent,
    ShardedRank,
    ShardedRecording,
    load_sharded_recording,
    save_recording,
)
from stagecut.runtime.execution.run import run  # noqa: E402
from stagecut.runtime.execution.sharded.prepare import (  # noqa: E402
    PreparedSharding,
    check_same_program,
    prepare_sharding,
)

#: Meshes on which `make test` runs a model.
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "language": [(2,)], "losses": [(2,)], "mixture": [(2, 2)], "odds": [(2,)], "vision": [(2, 2)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(name, shape, marks=() if shape in shapes else pytest.mark.slow)
        for name, shapes in SHAPES.items()
        for shape in ((2,), (4,), (2, 2))
    ],
    ids=str,
)
def test_random_signatures_compute_what_one_process_does(name: str, shape: tuple[int, ...]) -> None:
    assert SHAPES.keys() == MODELS.keys()
    converted, beside = on_ranks(prod(shape), run_random, shape, name, range(2))[0]
    assert converted > 20
    assert not beside


def test_all_of_it_is_where_the_mesh_is() -> None:
    ((found,), codes) = launched(1, devices_of, "meta")
    assert codes == [0]
    assert found == {name: {"meta"} for name in MODELS}


#: The two modules of a model, each on a group of devices.
APART = (("pictures", 1), ("words", 0))


@pytest.mark.parametrize(
    ("shape", "seeds", "bucket_bytes"),
    [
        ((2, 2), range(1), 500.0),
        pytest.param((2, 2), range(1, 2), 500.0, marks=pytest.mark.slow),
        pytest.param((2, 2), range(2), 0.0, marks=pytest.mark.slow),
        pytest.param((4,), range(2), 0.0, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_groups_of_devices_compute_what_one_process_does(
    shape: tuple[int, ...], seeds: range, bucket_bytes: float
) -> None:
    made = on_ranks(prod(shape), run_random, shape, "towers", seeds, bucket_bytes, APART)
    assert made[0][0] > 10
    assert min(left_out for _, left_out in made) > 20


@pytest.mark.slow
def test_groups_go_on_from_a_checkpoint_of_all(tmp_path: Path) -> None:
    on_ranks(4, train_and_go_on, (2, 2), "towers", tmp_path / "kept", APART)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("language", (2,)), pytest.param("vision", (2, 2), marks=pytest.mark.slow)],
    ids=str,
)
def test_gradients_are_added_up_in_buckets_beside_the_backward_pass(
    name: str, shape: tuple[int, ...]
) -> None:
    converted, beside = on_ranks(prod(shape), run_random, shape, name, range(0, 4, 2), 100.0)[0]
    assert converted > 20
    assert beside > 0


#: On GPUs an operator of a traced program draws other numbers than the module.
MODEL = (
    f"DROPOUT = {0.3 if DEVICE == 'cpu' else 0.0}"
    + """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.b = nn.Dropout(DROPOUT), nn.Linear(16, 4)

    def forward(self, x, y):
        h = self.drop(torch.relu(self.norm(self.a(x))))
        return nn.functional.cross_entropy(self.b(h), y)


def make(batch=4):
    def batches():
        for _ in range(3):
            yield torch.randn(batch, 8), torch.randint(0, 4, (batch,))

    return Net(), batches()
"""
)


def alone() -> list[float]:
    """Losses of the model, trained by itself from the same seed."""
    space: dict[str, Any] = {}
    exec(MODEL, space)
    torch.manual_seed(0)
    model, batches = space["make"]()
    first = next(batches)  # as the runtime does, before the weights are taken over
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for batch in chain([first], batches):
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, its program and two plans."""
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "model.py").write_text(MODEL)
    torch.manual_seed(0)
    model = make(f"{folder}/model.py:make").model
    inputs = torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64)
    workload = stagecut.tensor_program(model, inputs, estimate="h100")
    stagecut.save(workload, folder / "program.json")
    mesh = stagecut.DeviceMesh((2,), (stagecut.Link(1e-6, 1e10),))
    for name in ("megatron", "replicate"):
        plan = stagecut.solve(workload, problem=stagecut.Sharding(mesh), method=name).plan
        stagecut.save(plan, folder / f"{name}.json", workload)
    return folder


def trained(files: Path, *options: str) -> tuple[list[float], str]:
    """Run the plan by rule on two processes; return losses, and all that it says."""
    done = program_on_ranks(
        2, "stagecut", "run", "megatron.json", "--model", "model.py:make",
        "--workload", "program.json", "--optimizer", "adam", *options, folder=files,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    return [float(line.split()[3]) for line in lines], done.stdout


def test_it_goes_on_from_a_checkpoint(files: Path) -> None:
    first, _ = trained(files, "--steps", "2", "--checkpoint", "kept")
    rest, _ = trained(files, "--steps", "3", "--checkpoint", "kept", "--resume")
    assert [*first, *rest] == pytest.approx(alone(), rel=1e-5)
    merged = stagecut.merge_checkpoint(files / "kept")
    make(f"{files}/model.py:make").model.load_state_dict(merged)
    assert merged["a.weight"].shape == (16, 8)
    assert merged["norm.running_mean"].any()
    assert merged["norm.num_batches_tracked"] == 3


@pytest.mark.parametrize(
    "name",
    ["mixture", *(pytest.param(name, marks=pytest.mark.slow) for name in ("language", "vision"))],
)
def test_another_sharding_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    on_ranks(4, train_and_go_on, (2, 2), name, tmp_path / "kept")


def test_the_command_trains_as_one_process_does_and_reports(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses, said = trained(files, "--steps", "5", "--record", "run.json", "--check")
    assert losses == pytest.approx(alone(), rel=1e-5)
    assert "the inputs ended after 3 steps" in said
    reported = ["report", *(str(files / f"{name}.json") for name in ("program", "megatron", "run"))]
    assert run_command(reported) == 0
    assert "step: predicted" in capsys.readouterr().out
    assert run_command([*reported, "--warm-up", "1"]) == 2
    assert "--warm-up: the report of a sharding has none" in capsys.readouterr().err
    workload = stagecut.load(files / "program.json")
    plan = stagecut.load_plan(files / "megatron.json", workload)
    recording = load_sharded_recording(files / "run.json")
    compared = compare_sharded_run(workload, plan, recording)
    assert compared.steps == 2
    sent = {key: amount.bytes for key, amount in compared.measured.items()}
    assert sent == {key: amount.bytes for key, amount in compared.predicted.items()}
    calls = {key: amount.number for key, amount in compared.measured.items()}
    assert calls == {key: amount.number for key, amount in compared.predicted.items()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"microbatches": 2}, "microbatches: a sharding runs each batch as a whole"),
        ({"schedule": "1f1b"}, "schedule: a sharding"),
        ({"replicas": 2}, "replicas: a sharding"),
        ({"recompute": True}, "recompute: a sharding"),
        ({}, "torchrun --nproc-per-node 2"),
    ],
)
def test_what_shardings_do_not_take_is_one_line(
    files: Path, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    given = make(f"{files}/model.py:make")
    with pytest.raises(InputError, match=words):
        run(files / "replicate.json", given, RunOptions(**options))


def test_another_model_is_refused(files: Path) -> None:
    workload = stagecut.load(files / "program.json")
    batch = (torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64))
    model = make(f"{files}/model.py:make").model
    model.a = torch.nn.Linear(8, 16, bias=False)
    with pytest.raises(InputError, match=r"give the model and inputs \(--batch\)"):
        prepare_sharding(files / "replicate.json", model, batch, workload=workload)
    with pytest.raises(InputError, match=r"replicate.json: "):
        prepare_sharding(files / "replicate.json", model, batch)


class Writes(torch.nn.Module):
    """Writes into a part of a tensor that is then read as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        y[:, 0] = y[:, 0] * 2
        return y.square().mean()


class Averages(Writes):
    """Keeps a mean in a buffer, which it assigns anew or names as an output."""

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        self.assigns = assigns
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.assigns:
            self.mean = 0.5 * self.mean + y.detach().mean(0)
        else:
            torch.mul(y.detach()[0], 0.5, out=self.mean)
        return (y - self.mean.clone()).square().mean()


def replicated(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> PreparedSharding:
    """Prepare a sharding of two devices that compute everything."""
    workload = stagecut.tensor_program(model, inputs, estimate="h100")
    mesh = stagecut.DeviceMesh((2,), (stagecut.Link(0.0, 1e9),))
    plan = stagecut.solve(workload, problem=stagecut.Sharding(mesh), method="replicate").plan
    return prepare_sharding(plan, model, inputs, workload=workload)


@pytest.mark.parametrize(
    ("model", "where"),
    [(Writes(), "copy_"), (Averages(True), "mean"), (Averages(False), "mul")],
    ids=["view", "assigned", "output"],
)
def test_a_write_that_the_graph_does_not_show_is_refused(
    model: torch.nn.Module, where: str
) -> None:
    """The graph has what operators return, and nothing else that they change."""
    with pytest.raises(InputError, match=f"{where}: it changes a tensor in place"):
        replicated(model, (torch.ones(2, 4),))


FROZEN = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model[1].eval()
    return model, torch.ones(2, 4)
"""


def test_a_part_that_is_frozen_in_another_mode_stays_so(tmp_path: Path) -> None:
    (tmp_path / "frozen.py").write_text(FROZEN)
    reference, program = f"{tmp_path}/frozen.py:make", tmp_path / "program.json"
    profiled = ["profile", reference, *["--train", "--tensors", "--estimate", "h100"]]
    assert run_command([*profiled, "-o", str(program)]) == 0
    made = make(reference)
    prepared = replicated(made.model, made.args)
    assert [part.training for part in made.model] == [True, False]
    check_same_program(prepared.workload.program, stagecut.load(program).program, "profiled")


def test_recurrent_layers_are_operators_that_run_without_autograd() -> None:
    graph = replicated(torch.nn.LSTM(4, 4), (torch.ones(3, 2, 4),)).sharded.graph.graph
    assert not any("mkldnn" in str(node.target) for node in graph.nodes)


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(InputError, match="it is sparse, which has no parts"):
        replicated(torch.nn.Embedding(4, 4, sparse=True), (torch.tensor([0, 1]),))


def test_complex_numbers_are_converted() -> None:
    on_ranks(2, convert_complex)


def test_inputs_must_be_those_traced(files: Path) -> None:
    batch = (torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64))
    model = make(f"{files}/model.py:make").model
    prepared = prepare_sharding(files / "replicate.json", model, batch)
    assert len(prepared.inputs(batch)) == 2
    with pytest.raises(InputError, match="input 0 is 3×8 float32; every microbatch must be 4×8"):
        prepared.inputs((torch.zeros(3, 8), batch[1]))
    with pytest.raises(InputError, match="1 tensors; the model takes 2"):
        prepared.inputs(batch[:1])
    with pytest.raises(InputError, match="by name"):
        prepared.inputs(batch, {"z": 1})


def test_a_recording_that_was_changed_is_refused(tmp_path: Path) -> None:
    event = RecordedEvent(0, "mm", "forward", False, -1, 0.0, 1.0, 0.0)
    good = ShardedRecording(
        "fingerprint",
        "plan",
        (2,),
        (1.0,),
        (ShardedRank(0, "h", (event,)), ShardedRank(1, "h", (event,))),
    )
    save_recording(good, tmp_path / "run.json")
    assert load_sharded_recording(tmp_path / "run.json").ranks[1].events == (event,)
    data = json.loads((tmp_path / "run.json").read_text())
    for change, words in (
        (lambda ranks: ranks.pop(0), "list ranks"),
        (lambda ranks: ranks[1]["events"].pop(), "other things"),
        (lambda ranks: ranks[0]["events"][0].__setitem__(6, -1.0), "ends before"),
    ):
        other = json.loads(json.dumps(data))
        change(other["ranks"])
        (tmp_path / "other.json").write_text(json.dumps(other))
        with pytest.raises(InputError, match=words):
            load_sharded_recording(tmp_path / "other.json")
