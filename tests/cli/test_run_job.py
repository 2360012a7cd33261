"""`stagecut run` of a training job's plan, as a user starts it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from project import ROOT

import stagecut
from stagecut import cli
from stagecut.instances.costs.description import Attention, Block, FeedForward, ModelDescription
from stagecut.instances.job.plan import JobPlan

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from ranks import program_on_ranks  # noqa: E402

from stagecut.runtime.execution.job.run import planned_model  # noqa: E402
from stagecut.runtime.execution.job.transformer import transformer  # noqa: E402

SMALL = ModelDescription(
    "small", 16, 32, (Block(Attention(4, 2, 4), feed_forward=FeedForward(24)),) * 4
)


def planned(folder: Path, devices: int, **fields: Any) -> Path:
    """Return the file of a plan on so many devices."""
    job = stagecut.TrainingJob(global_batch=8, sequence=8, launcher="stagecut", **fields)
    plan = stagecut.solve(SMALL, f"h100:{devices}", job).plan
    assert isinstance(plan, JobPlan)
    plan.save(folder / "job.json")
    return folder / "job.json"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No torchrun around."""
    for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(key, "")
        monkeypatch.delenv(key)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = cli.run_command(["run", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def losses(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss (\S+)", text)]


def test_a_plan_trains_its_own_model_and_its_collectives_are_the_planned_ones(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path, 2, tensor=2, recipe="fp32", recompute=(frozenset(),))
    recording, words = tmp_path / "run.json", tmp_path / "words.bin"
    np.random.default_rng(0).integers(0, 32, 100).astype(np.uint16).tofile(words)
    asked = "stagecut", "run", plan, "--tokens", words, "--steps", "3", "--device", "cpu"
    asked += ("--checkpoint", tmp_path / "kept")
    done = program_on_ranks(
        2, *asked, "--optimizer", "adamw", "--lr", "0.01", "--set", "clip=1", "--report",
        "--record", recording, folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 3
    ranks = json.loads(recording.read_text())["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    layout = stagecut.load_job_plan(plan).layout
    estimate = stagecut.estimate(SMALL, layout, "h100:2")
    for rank in ranks:
        assert sum(rank["terms"].values()) == pytest.approx(rank["seconds"])
        counted = {(x["axis"], x["kind"]): (x["count"], x["size"]) for x in rank["collectives"]}
        for one in estimate.collectives():
            assert counted[one.axis, one.kind] == (one.count, one.size)
        assert rank["memory"]["parameters"] == estimate.memory[0].parameters
    again = program_on_ranks(2, *asked, folder=tmp_path)
    assert again.returncode == 2
    assert "it holds checkpoints of a run; add --resume" in again.stderr


@pytest.mark.usefixtures("alone")
def test_a_run_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, kept = planned(tmp_path, 1, recipe="fp32"), str(tmp_path / "kept")
    options = ["--device", "cpu", "--optimizer", "adam", "--lr", "0.01"]
    code, out, err = run(capsys, plan, *options, "--steps", "3")
    assert code == 0, err
    whole = losses(out)
    first = run(capsys, plan, *options, "--steps", "2", "--checkpoint", kept, "--every", "1")
    then = run(capsys, plan, *options, "--steps", "3", "--checkpoint", kept, "--resume")
    assert losses(first[1]) + losses(then[1]) == whole
    assert sorted(path.name for path in (tmp_path / "kept").glob("step-*")) == [
        "step-00000001", "step-00000002", "step-00000003",
    ]  # fmt: skip
    (tmp_path / "kept" / "step-00000003" / "manifest.json").unlink()  # as if it was not finished
    then = run(capsys, plan, *options, "--steps", "3", "--checkpoint", kept, "--resume")
    assert losses(then[1]) == whole[2:]
    code, out, _ = run(capsys, plan, *options, "--steps", "3", "--checkpoint", kept, "--resume")
    assert code == 0
    assert "it has 3 steps already" in out
    code, _, err = run(capsys, plan, *options[:2], "--steps", "4", "--checkpoint", kept, "--resume")
    assert code == 2
    assert "it has the state of Adam for" in err
    model, _ = transformer(SMALL)
    model.to_empty(device="cpu").load_state_dict(stagecut.merge_checkpoint(kept))
    assert model.head.weight.std() > 0


def test_key_heads_that_tensor_parallelism_does_not_divide_are_refused(tmp_path: Path) -> None:
    plan = stagecut.load_job_plan(planned(tmp_path, 4))
    plan = replace(plan, layout=replace(plan.layout, tensor=4))
    with pytest.raises(stagecut.InputError, match="tensor: 4 does not divide the 2 key and value"):
        planned_model(plan, None)


@pytest.mark.usefixtures("alone")
def test_a_model_of_ones_own_is_given_with_how_it_is_divided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, file = planned(tmp_path, 1, recipe="fp32"), tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "from stagecut.runtime.execution.job.parallelize import ParallelizePlan\n"
        "def make(layers=4):\n"
        "    model = nn.ModuleDict({'embedding': nn.Embedding(32, 8)})\n"
        "    model['layers'] = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))\n"
        "    model['norm'], model['head'] = nn.LayerNorm(8), nn.Linear(8, 32)\n"
        "    return model, ParallelizePlan()\n"
        "def short():\n"
        "    return make(3)\n"
        "def bare():\n"
        "    return make()[0]\n"
    )
    code, out, err = run(capsys, plan, "--model", f"{file}:make", "--steps", "2", "--device", "cpu")
    assert (code, len(losses(out))) == (0, 2), err
    for name, message in (
        ("short", "its model has 3 layers, and small of the plan 4"),
        ("bare", "it returns the model and its ParallelizePlan"),
    ):
        code, _, err = run(capsys, plan, "--model", f"{file}:{name}", "--device", "cpu")
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "2"], "--batch: the plan of a training job says it"),
        (["--microbatches", "2"], "microbatches: the layout of a training job says it"),
        (["--set", "recompute=true"], "recompute: the layout of a training job says it"),
        (["--check"], "check: jobs have `loss_alone` for it"),
        (["--report", "--steps", "1"], "the first step does more than the others; take at"),
        (["--record", "r.json", "--steps", "1"], "the first step does more than the others"),
        (["--set", "clip=-1"], "clip: -1"),
        (["--every", "2"], "checkpoint: say in which folder"),
        (["--tokens", "missing.bin"], "missing.bin: no tokens can be read"),
        (["--tokens", "words.txt"], "words.txt: tokens are in"),
        ([], "the plan runs on 2 processes; start it with: torchrun --nproc-per-node 2"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = planned(tmp_path, 2 if not arguments else 1, recipe="fp32")
    code, _, err = run(capsys, plan, *arguments, "--device", "cpu")
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.usefixtures("alone")
def test_tokens_that_the_model_has_not_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(tmp_path, 1, recipe="fp32")
    for name, line, message in (
        ("few", np.arange(5), "5 tokens; a sequence takes 9"),
        ("large", np.full(100, 40), "token 40; small has 0 to 31"),
        ("negative", np.full(100, -1), "token -1; small has 0 to 31"),
        ("floats", np.zeros(100), "one line of whole numbers"),
        ("empty", np.zeros(0), "no tokens can be read"),
    ):
        np.save(tmp_path / f"{name}.npy", line)
        file = str(tmp_path / f"{name}.npy")
        if name == "empty":
            (tmp_path / "empty.npy").write_bytes(b"")
        code, _, err = run(capsys, plan, "--tokens", file, "--device", "cpu")
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


def test_the_example_of_a_loop_trains_and_goes_on_under_another_plan(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    said = []
    for name, fields, steps in (
        ("pipeline", {"pipeline": 2, "microbatch": 2}, "10"),
        ("tensor", {"tensor": 2}, "14"),
    ):
        (tmp_path / name).mkdir()
        plan = planned(tmp_path / name, 2, recipe="fp32", **fields)
        example = ROOT / "examples" / "own_training_loop.py"
        done = program_on_ranks(2, example, plan, kept, steps, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        said += re.findall(r"step (\d+) loss (\S+) norm \S+ valid (\S+)", done.stdout)
    assert [int(step) for step, *_ in said] == [10, 14]
    (_, first, _), (_, last, valid) = said
    assert float(last) < float(first)
    assert float(valid) < 3.4  # of 32 words
