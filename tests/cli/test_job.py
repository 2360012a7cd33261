"""`stagecut solve MODEL --global-batch N`: plans, their files, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stagecut
from stagecut import cli, load_job_plan

SMALL = ["solve", "llama3-8b", "--cluster", "h100:8", "--global-batch", "64", "--sequence", "4096"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run_command(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_a_plan_is_found_written_judged_and_handed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, folder = tmp_path / "a job.json", tmp_path / "for megatron"
    code, out, err = run(capsys, *SMALL, "-o", str(file))
    assert code == 0, err
    for words in ("tokens/s/GPU", "plan: DP 8, ", "bound: no layout", "what is usually done"):
        assert words in out
    plan = load_job_plan(file)
    assert plan.gap <= 1e-3
    assert plan.layout.devices == 8
    code, out, err = run(capsys, "verify", "llama3-8b", str(file), "--bound")
    assert (code, err) == (0, "")
    assert "(proved, " in out
    code, out, err = run(capsys, "verify", "llama3-70b", str(file))
    assert (code, err.count("\n")) == (2, 1)
    assert "it is a plan of llama3-8b, not of llama3-70b" in err
    code, out, err = run(capsys, "export", str(file), "--to", "megatron", "-o", str(folder))
    assert code == 0, err
    assert "--micro-batch-size" in (folder / "megatron.sh").read_text()


def test_what_is_fixed_is_kept_and_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--set", "tensor=2", "--set", "zero=[0, 1]", "--json"]
    code, out, err = run(capsys, *SMALL, *fixed)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["layout"]["tensor"] == 2
    assert answer["layout"].get("zero", 0) in (0, 1)
    assert answer["bound"] <= answer["iteration_seconds"]
    best, *others = [one["seconds"] for one in answer["candidates"]]
    assert best == pytest.approx(answer["iteration_seconds"])
    assert others == sorted(others)
    assert all(one["seconds"] <= 1.05 * best for one in answer["close"])


def test_what_nothing_fits_says_the_least_memory(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "solve", "llama3-70b", "--cluster", "h100:8", "--global-batch", "64")
    assert code == 3
    assert "needs at least" in out
    least = float(out.partition("at least ")[2].split()[0])
    job = stagecut.TrainingJob(global_batch=64, memory_bytes=least * 1.02 * 2**30)
    devices = stagecut.training_cluster("b200:8")
    assert stagecut.solve("llama3-70b", devices, job).plan is not None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "tensor=3"], "no layout of 8 devices for megatron"),
        (["--set", "zero=4"], "zero: 4; it must be 0, 1, 2 or 3"),
        (["--set", "foo=1"], "no such field"),
        (["--set", "tensor=2.5"], "tensor"),
        (["--set", "sequence=4096"], "give one of them"),
        (["--set", "launcher=nobody"], "launcher"),
        (["--for", "deepspeed", "--set", "expert=2"], "no layout"),
        (["--schedule", "1f1b"], "--set schedules"),
        (["--microbatches", "8"], "--microbatches: not of a training job"),
        (["--method", "milp"], "--method: not of a training job"),
        (["--memory", "12 parsecs"], "--memory"),
    ],
)
def test_contradictions_end_in_one_line(
    capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    code, out, err = run(capsys, *SMALL, *more)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err


def test_without_batch_or_cluster_it_is_no_job(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "solve", "llama3-70b", "--global-batch", "64")
    assert (code, "--cluster: it is missing" in err) == (2, True)
    code, _, err = run(capsys, "solve", "gpt2-xl", "--sequence", "64")
    assert (code, "give --global-batch" in err) == (2, True)
    with pytest.raises(stagecut.InputError, match="of a model description"):
        stagecut.solve(stagecut.model_description("llama3-8b"))
    with pytest.raises(stagecut.InputError, match="it takes a model such as"):
        stagecut.solve("llama3-8b", None, stagecut.TrainingJob(global_batch=8))
