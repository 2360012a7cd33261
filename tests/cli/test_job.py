"""`stagecut solve MODEL --global-batch N`: plans, their files, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stagecut
from stagecut import TrainingJob, cli, load_job_plan
from stagecut.instances.formats.problem_toml import make_record

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
    assert "llama3-8b on 8 h100-sxm, 64 × 4,096 tokens" in " ".join(out.split())
    plan = load_job_plan(file)
    assert plan.gap <= 1e-3
    assert plan.layout.devices == 8
    code, out, err = run(capsys, "verify", "llama3-8b", str(file), "--bound")
    assert (code, err) == (0, "")
    assert "(proved, " in out
    code, alone, err = run(capsys, "verify", str(file), "--bound")
    assert (code, alone, err) == (0, out, "")
    code, _, err = run(capsys, "verify", "llama3-8b")
    assert (code, err.count("\n"), "PLAN: it is missing" in err) == (2, 1, True)
    code, out, err = run(capsys, "verify", "llama3-70b", str(file))
    assert (code, err.count("\n")) == (2, 1)
    assert "it is a plan of llama3-8b, not of llama3-70b" in err
    code, out, err = run(capsys, "export", str(file), "--to", "megatron", "-o", str(folder))
    assert code == 0, err
    assert "--micro-batch-size" in (folder / "megatron.sh").read_text()


def test_what_is_fixed_is_kept_and_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--set", "tensor=2", "--set", "zero=[0, 1]", "--for", "run", "--json"]
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
    assert "; it fits on 16 of them" in out
    least = float(out.partition("at least ")[2].split()[0])
    job = stagecut.TrainingJob(global_batch=64, memory_bytes=least * 1.02 * 2**30)
    devices = stagecut.training_cluster("b200:8")
    assert stagecut.solve("llama3-70b", devices, job).plan is not None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "zero=0", "--set", "tensor=1,pipeline=1"], "it fits with tensor left open"),
        (["--memory", "12GiB"], "12.0 are allowed; it fits with all of its memory"),
    ],
)
def test_the_change_that_makes_it_fit(
    capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    code, out, err = run(capsys, *SMALL, *more)
    assert (code, out.count("\n"), err) == (3, 1, ""), out
    assert said in out


def test_host_memory_makes_room_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "job.json"
    asked = ["solve", "llama3-8b", "--cluster", "h100:1", "--global-batch", "16", "-o", str(file)]
    code, out, _ = run(capsys, *asked)
    assert code == 3
    given = "offload_optimizer=1"
    assert f", or with 100 % of optimizer state in host memory (--set {given})" in out
    code, out, err = run(capsys, *asked, "--set", given)
    assert code == 0, err
    assert "recomputed, 100 % of optimizer state in host memory\n" in out
    code, out, err = run(capsys, "verify", str(file), "--bound")
    assert (code, err) == (0, "")
    code, out, err = run(capsys, "export", str(file), "--to", "megatron", "-o", str(tmp_path))
    assert code == 0, err
    assert "--optimizer-offload-fraction 1" in (tmp_path / "megatron.sh").read_text()
    for name in ("layout.sh", "layout.png"):  # the files go into a folder
        asked = ["export", str(file), "--to", "megatron", "-o", str(tmp_path / name)]
        code, out, err = run(capsys, *asked)
        assert (code, out, "it is no folder" in err) == (2, "", True)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "offload_optimizer=1.5"], "offload_optimizer: 1.5; give parts from 0 to 1"),
        (["--set", "offload_weights=1"], "offload_weights: megatron keeps none of it in host"),
        (["--set", "offload_activations=1,zero=3"], "leave offload_activations out, or plan for"),
        (["--set", "offload_optimizer=true"], "is true; it must be a number or a list"),
        (["--set", "schedules=[zb-h1]", "--set", "pipeline=2"], "megatron runs none of zb-h1"),
        (["--set", "tensor=3"], "and tensor 3; leave tensor open"),
        (["--set", "tensor=8,pipeline=[2, 4]"], "pipeline 2 or 4; leave tensor or pipeline open"),
        (
            ["--set", "tensor=1,data=8,microbatch=16"],
            "microbatch open, or take a global batch of 128",
        ),
        (["--cluster", "h100:7", "--set", "tensor=1,context=1,pipeline=1"], "batch of 70"),
        (["--set", "zero=4"], "zero: 4; it must be 0, 1, 2 or 3"),
        (["--set", "foo=1"], "unknown field"),
        (["--set", "schedules=[zb-v]"], "schedules: megatron runs none of zb-v; take some of 1f1b"),
        (["--set", "schedules=[2f2b]"], "it must be one of 1f1b"),
        (["--set", "schedules=2f2b"], 'schedules[0] is "2f2b"; it must be one of 1f1b'),
        (["--set", "recompute=norms"], '"norms"; it must be one of full, core_attn'),
        (["--set", "recompute=[mlp, moe]"], 'recompute[0] is "mlp"; it must be a list: ["mlp"]'),
        (["--set", "zero=[1, 5]"], "zero: 5; it must be 0, 1, 2 or 3"),
        (["--set", "tensor=2.5"], "tensor"),
        (["--set", "sequence=4096"], "give one of them"),
        (["--set", "launcher=nobody"], '--for: "nobody" is not one of'),
        (["--for", "deepspeed", "--set", "schedules=[zb-h1],pipeline=2"], "plan for any launcher"),
        (["--for", "deepspeed", "--set", "expert=2"], "no layout"),
        (["--schedule", "1f1b"], "of a training job; say --set schedules=1f1b"),
        (["--accelerators", "8"], "say how many in --cluster, such as h100:8"),
        (["--for", "torchtitan", "--set", "recompute=mlp"], "take some of full, op"),
        (["--set", "recompute=moe"], "megatron can recompute no moe of llama3-8b; take some of"),
        (["--microbatches", "8"], "--microbatches: not of a training job"),
        (["--method", "milp"], "--method: not of a training job"),
        (["--memory", "12 parsecs"], "--memory"),
        (["--memory", "0"], "--memory: 0; it must be above 0"),
        (["--for", "vllm"], '--for: "vllm" is not one of megatron'),
        (["--set", "memory_bytes=12 parsecs"], '--memory: "12 parsecs"; write a size'),
        (["--tp", "2"], "; to fix it in a training job, say --set tensor=…"),
    ],
)
def test_contradictions_end_in_one_line(
    capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    code, out, err = run(capsys, *SMALL, *more)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two plans of one model, the second in a pipeline of two ranks."""
    folder = tmp_path_factory.mktemp("plans")
    found = []
    for name, pipeline in (("one", 1), ("two", 2)):
        job = stagecut.TrainingJob(
            global_batch=16, sequence=2048, tensor=1, context=1, pipeline=pipeline
        )
        plan = stagecut.solve("llama3.2-1b", "h100:4", job).plan
        plan.save(folder / f"{name}.json")
        found.append(str(folder / f"{name}.json"))
    return found[0], found[1]


def test_a_cluster_without_number_gives_a_front(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table, picture = tmp_path / "front.csv", tmp_path / "front.png"
    asked = ["solve", "llama3.2-1b", "--cluster", "h100", "--global-batch", "16",
             "--set", "gpus=2:8,price=2.5", "--set", "context=1", "--set", "rate=1e12"]  # fmt: skip
    code, out, err = run(capsys, *asked, "-o", str(table), "--plot", str(picture))
    assert (code, err) == (0, "")
    for words in ("fewest of these that a plan was found for: 2", "tokens/s: none of these",
                  "least price"):  # fmt: skip
        assert words in out
    assert max(map(len, out.splitlines()[:12])) <= 80
    rows = table.read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["devices", "2", "4", "8"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, err = run(capsys, *asked, "--json")
    front = json.loads(out)["front"]
    assert [one["gpus"] for one in front] == [2, 4, 8]
    assert all(one["bound"] <= one["seconds"] for one in front)


def test_a_plan_is_not_written_into_a_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "plan.csv"
    asked = ["solve", "llama3.2-1b", "--cluster", "h100:8", "--global-batch", "16"]
    for words in (asked, ["solve", "resnet50-operators", "--accelerators", "2"]):
        code, out, err = run(capsys, *words, "-o", str(table))
        assert (code, out, err.count("\n"), table.exists()) == (2, "", 1, False)
        assert "plan.csv: a plan is no table" in err


def test_a_table_is_not_written_into_a_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tmp_path / "table.json"
    job = ["llama3.2-1b", "--cluster", "h100", "--global-batch", "16"]
    for words in (["solve", *job], ["compare", *job], ["compare", "unet"]):
        code, out, err = run(capsys, *words, "-o", str(plan))
        assert (code, out, err.count("\n"), plan.exists()) == (2, "", 1, False)
        assert "table.json: a table is written as CSV" in err


@pytest.mark.parametrize(
    ("cluster", "setting", "said"),
    [
        ("h100", "gpus=[]", "write a number"),
        ("h100", "gpus=8:x", "write a number"),
        ("h100", "gpus=0", "write a number"),
        ("h100:8x8", "gpus=8", "PER_NODE"),
        ("h100+a100", "gpus=8", "one NAME"),
        ("h100", "gpus=12", "write h100:4 for nodes of 4"),
        ("h100:8", "price=2", "of a front alone"),
        ("8xh100", "gpus=8", "write NAME:PER_NODExNODES, such as h100:8x16"),
        ("h100", "price=cheap", "it must be a number"),
        ("h100", "price=-1", "0 or above"),
    ],
)
def test_fronts_of_nothing_end_in_one_line(
    capsys: pytest.CaptureFixture[str], cluster: str, setting: str, said: str
) -> None:
    code, out, err = run(capsys, "solve", "llama3.2-1b", "--cluster", cluster,
                         "--global-batch", "16", "--set", setting)  # fmt: skip
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err


def test_one_choice_needs_no_brackets() -> None:
    stated = {"global_batch": 8, "schedules": "gpipe", "recompute": "mlp", "launcher": "any"}
    job = make_record(TrainingJob, stated)
    assert job == TrainingJob(8, launcher="any", schedules=("gpipe",), recompute=({"mlp"},))
    assert job == TrainingJob(8, launcher="any", schedules="gpipe", recompute="mlp")
    with pytest.raises(
        stagecut.InputError, match=r'recompute: "mlp"; give sets of modules: {"mlp"}'
    ):
        TrainingJob(8, recompute=["mlp", "moe"])
    assert TrainingJob(8, zero=[0, 1]) == TrainingJob(8, zero=(0, 1))


def test_what_no_plan_is_of_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plans: tuple[str, str]
) -> None:
    graph = str(tmp_path / "plan.json")
    one = ["--accelerators", "1", "--method", "single", "-o", graph]
    assert run(capsys, "solve", "resnet50", *one)[0] == 0
    for arguments, said in (
        (["verify", graph], "it is a plan; name the workload that it is for before it"),
        (["simulate", graph], "it is a plan; name the workload that it is for before it"),
        (["explain", graph], "it is a plan, not a workload"),
        (["simulate", plans[0], graph], "it is the plan of a training job, not a workload"),
        (["verify", "resnet50", plans[0]], "a plan of llama3.2-1b, not of resnet50"),
    ):
        code, _, err = run(capsys, *arguments)
        assert (code, err.count("\n")) == (2, 1), err
        assert said in err


def test_a_plan_over_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plans: tuple[str, str]
) -> None:
    files = {name: tmp_path / f"run.{name}" for name in ("png", "html", "csv", "json")}
    code, out, err = run(capsys, "simulate", "llama3.2-1b", plans[1], "--plot", str(files["png"]),
                         "--csv", str(files["csv"]), "--trace", str(files["json"]))  # fmt: skip
    assert (code, err) == (0, "")
    assert "rank 1" in out
    assert "an iteration takes" in out
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert "0F0" in files["csv"].read_text()
    assert json.loads(files["json"].read_text())
    code, out, err = run(capsys, "simulate", plans[1], "--json", "--plot", str(files["html"]))
    answer = json.loads(out)
    assert answer["makespan"] < load_job_plan(plans[1]).seconds
    assert len(answer["devices"]) == 2
    assert "rank 1" in files["html"].read_text()
    code, _, err = run(capsys, "simulate", "llama3.2-1b", plans[1], "--schedule", "gpipe")
    assert (code, "--schedule: the plan of a training job says it" in err) == (2, True)
    code, _, err = run(capsys, "explain", plans[0], "--microbatches", "4")
    assert (code, "--microbatches: the plan of a training job says it" in err) == (2, True)


def test_plans_are_explained_and_told_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plans: tuple[str, str]
) -> None:
    picture = tmp_path / "plan.png"
    asked = ["explain", plans[1], "--time-limit"]
    code, out, err = run(capsys, *asked, "4", "--plot", str(picture))
    assert (code, err) == (0, "")
    for words in ("decided otherwise", "what is usually done", "twice the memory"):
        assert words in out
    assert max(map(len, out.splitlines()[1:-1])) <= 80
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, err = run(capsys, *asked, "0", "--json")
    answer = json.loads(out)
    assert sum(answer["terms"].values()) == pytest.approx(answer["iteration_seconds"])
    assert answer["changes"] == answer["decisions"] == []
    code, _, err = run(capsys, *asked, "0", "--memory", "8GiB")
    assert (code, err.count("\n"), "--memory: the plan" in err) == (2, 1, True)
    code, out, err = run(capsys, "diff", *plans)
    assert (code, "one.json" in out, "pipeline" in out) == (0, True, True)
    code, out, err = run(capsys, "diff", *plans, "--json")
    assert json.loads(out)["layout"]["pipeline"] == [1, 2]
    (tmp_path / "other.json").write_text("{}")
    code, _, err = run(capsys, "diff", plans[0], str(tmp_path / "other.json"))
    assert (code, err.count("\n"), "name two plans of a kind" in err) == (2, 1, True)
    code, _, err = run(capsys, "diff", plans[0], str(tmp_path / "none.json"))
    assert (code, err.count("\n"), "none.json: no such file" in err) == (2, 1, True)


def test_allowed_memory_is_told_with_its_unit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plans: tuple[str, str]
) -> None:
    less = str(tmp_path / "less.json")
    asked = ["solve", "llama3.2-1b", "--cluster", "h100:4", "--global-batch", "16",
             "--sequence", "2048", "--memory", "60GiB", "-o", less]  # fmt: skip
    code, out, _ = run(capsys, *asked)
    assert (code, "needed, of 60.00 GiB allowed" in out) == (0, True)
    code, out, _ = run(capsys, "diff", plans[0], less)
    assert (code, "60.00 GiB" in out) == (0, True)


def test_jobs_are_compared_with_what_is_usually_done(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plans: tuple[str, str]
) -> None:
    table = tmp_path / "compared.csv"
    code, out, err = run(capsys, "compare", *plans, "-o", str(table))
    assert (code, err) == (0, "")
    assert out.count("the best usual choice") == 2
    rows = table.read_text().splitlines()
    assert rows[0] == "plan,choice,layout,seconds,bound,reason"
    assert sum(",planned," in row for row in rows) == 2
    assert all(row.endswith(",") or ",first choice: " in row for row in rows[1:])
    asked = ["--cluster", "h100:4", "--global-batch", "16", "--set", "context=1"]
    code, out, err = run(capsys, "compare", "llama3.2-1b", "llama3-70b", *asked)
    assert (code, err) == (0, "")
    assert "faster than" in out
    assert "llama3-70b needs at least" in out
    for more, said in (
        ([plans[0], "gpt2-xl"], "it is no plan of a training job"),
        ([plans[0], *asked], "leave --global-batch out"),
        ([plans[0], "--cluster", "h100"], "--cluster: the plan of a training job says it"),
        (["llama3.2-1b", "--sequence", "64"], "give --global-batch"),
        (["llama3.2-1b", "--cluster", "h100", "--global-batch", "8"], "number of devices open"),
        (["llama3.2-1b", *asked, "--methods", "dp"], "--methods: not of a training job"),
    ):
        code, _, err = run(capsys, "compare", *more)
        assert (code, err.count("\n")) == (2, 1), err
        assert said in err


def test_without_batch_or_cluster_it_is_no_job(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "solve", "llama3-70b", "--global-batch", "64")
    assert (code, "--cluster: it is missing" in err) == (2, True)
    code, _, err = run(capsys, "solve", "gpt2-xl", "--sequence", "64")
    assert (code, "give --global-batch" in err) == (2, True)
    for arguments, said in (
        (("solve", "llama3-70b", "--cluster", "h100:8x8"), "--global-batch: it is missing"),
        (("compare", "Llama-3-70B", "--cluster", "h100:8"), "--global-batch: it is missing"),
        (("solve", "llama3-7", "--cluster", "h100:8"), "no shipped workload of this name"),
        (("solve", "gpt2-xl", "--cluster", "h100:8"), "h100:8 is of training jobs"),
        (("solve", "gpt2-xl", "--split", "all"), "'--split': 'all' is not one of"),
    ):
        code, _, err = run(capsys, *arguments)
        assert (code, err.count("\n"), said in err) == (2, 1, True), err
    with pytest.raises(stagecut.InputError, match="of a model description"):
        stagecut.solve(stagecut.model_description("llama3-8b"))
    with pytest.raises(stagecut.InputError, match="it takes a model such as"):
        stagecut.solve("llama3-8b", None, stagecut.TrainingJob(global_batch=8))
