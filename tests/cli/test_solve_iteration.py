"""`stagecut solve` for an iteration: from the options to plans that others take over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from cli_cases import compare_here
from training_cases import random_training_case
from typer.testing import CliRunner

from stagecut import (
    InputError,
    Limits,
    PipelineJob,
    PlacementRules,
    Throughput,
    Workload,
    accelerators_and_cpus,
    load_plan,
    rank_schedules,
    save,
    solve,
)
from stagecut import simulate as simulate_plan
from stagecut.api.gain import gain
from stagecut.commands.common.pose import ProblemOptions, build, state
from stagecut.commands.compare import compare
from stagecut.commands.diff import diff
from stagecut.commands.export import export, export_model
from stagecut.commands.simulate import simulate
from stagecut.commands.solve import solve as solve_command
from stagecut.commands.verify import verify
from stagecut.instances import is_iteration
from stagecut.instances.model.problem import suggested_cluster
from stagecut.runtime.export.registry import launcher_file
from stagecut.runtime.simulate.plan_stages import schedule_to_run

app = typer.Typer()
for command in (solve_command, simulate, diff, verify, export, compare, export_model):
    app.command(command.__name__.replace("_", "-"))(command)

TIMES = np.array([3.0, 1.0, 2.0, 4.0, 2.0, 3.0])


def trained(transfer: float = 0.25, weight: float = 8.0, **more: object) -> Workload:
    """A chain of six layers with their backward passes, twice as long."""
    n = len(TIMES)
    names = [f"layers.{v}" for v in range(n)]
    given: dict[str, object] = {
        "name": "net",
        "ids": (*names, *(f"{name}.backward" for name in names)),
        "names": (*names, *names),
        "edges": np.array(
            [(v, v + 1) for v in range(n - 1)]
            + [(n + v + 1, n + v) for v in range(n - 1)]
            + [(v, n + v) for v in range(n)]
        ),
        "times": {"accelerator": np.concatenate((TIMES, 2 * TIMES))},
        "memory_bytes": np.repeat([weight + 1.0, 0.0], n),
        "transfer": np.full(2 * n, transfer),
        "backward": np.repeat([False, True], n),
        "colours": np.tile(np.arange(n), 2),
        "extra": {
            "weight_bytes": np.repeat([weight, 0.0], n),
            "parameters": np.repeat([1.0, 0.0], n),
            "activation_bytes": np.repeat([1.0, 0.0], n),
        },
        "time_unit": "ms",
        "cluster": accelerators_and_cpus(3, 0),
    }
    return Workload(**(given | more))  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save(trained(), tmp_path / "w.json")
    return tmp_path / "w.json"


def _run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def test_what_was_planned_is_what_all_others_take(file: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    answer = json.loads(_run("solve", file, "--microbatches", 4,
                             "-o", plan, "--json"))  # fmt: skip
    assert answer["problem"] == "pipeline"
    assert (answer["schedule"], answer["microbatches"]) == ("1f1b", 4)
    assert answer["per_microbatch"] == answer["objective"] / 4
    assert answer["one_device"] == pytest.approx(4 * 3 * TIMES.sum())
    assert answer["speed_up"] == pytest.approx(answer["one_device"] / answer["objective"])
    run = json.loads(_run("simulate", file, plan, "--json"))
    assert run["makespan"] == answer["objective"]
    assert run["bubble"] == answer["bubble"]
    assert (run["schedule"], run["microbatches"]) == ("1f1b", 4)
    assert max(run["peak_memory"].values()) == max(d["memory"] for d in answer["devices"])
    assert "verified" in _run("verify", file, plan)
    assert json.loads(_run("diff", plan, plan, "--json"))["moved"] == []
    csv = tmp_path / "s.csv"
    _run("export", plan, "--to", "csv", "--workload", file, "-o", csv)
    again = json.loads(_run("simulate", file, plan, "--schedule", csv, "--json"))
    assert again["makespan"] == answer["objective"]
    for option, value in (("--schedule", "gpipe"), ("--microbatches", 8)):
        with pytest.raises(InputError, match=f"{value}; the plan was made for .*: leave it out"):
            _run("export", plan, "--to", "csv", "--workload", file, "-o", csv, option, value)


ROWS = "0F0,0F1,,0B0,0F2,0B1,0F3,0B2,0B3\n,1F0,1B0,1F1,1F2,1B1,1F3,1B2,1B3\n"


def test_a_schedule_of_the_users_own_is_planned_and_handed_on(file: Path, tmp_path: Path) -> None:
    plan, own, csv = tmp_path / "plan.json", tmp_path / "own.csv", tmp_path / "s.csv"
    own.write_text(ROWS)
    two = ("--accelerators", 2)
    answer = json.loads(_run("solve", file, "--schedule", own, *two, "-o", plan, "--json"))
    assert (answer["schedule"], answer["microbatches"]) == ("given", 4)
    assert answer["status"] == "optimal"
    run = json.loads(_run("simulate", file, plan, "--json"))
    assert run["makespan"] == answer["objective"]
    again = json.loads(_run("simulate", file, plan, "--schedule", own, "--json"))
    assert again["makespan"] == answer["objective"]
    assert "verified" in _run("verify", file, plan)
    _run("export", plan, "--to", "csv", "--workload", file, "-o", csv)
    idle_left_out = [[cell for cell in row.split(",") if cell] for row in ROWS.splitlines()]
    assert [row.split(",") for row in csv.read_text().splitlines()] == idle_left_out
    assert "under the schedule given" in _run("solve", file, "--schedule", own)
    with pytest.raises(InputError, match="made for given; it runs 1f1b"):
        _run("export", plan, "--to", "megatron", "--workload", file, "-o", tmp_path / "m.sh")
    for arguments, message in (
        (("solve", file, "--schedule", own, "--microbatches", 8), "--microbatches: 8; .* is of 4"),
        (("solve", file, "--schedule", "given", "--microbatches", 4), "name the CSV file"),
        (("solve", file, "--schedule", own, "--problem", "latency"), "belongs to --problem pipe"),
        (("solve", file, "--schedule", own, "-o", own), "own.csv: it is an input"),
        (("simulate", file, plan, "--microbatches", 2), "microbatches: 2; the schedule is of 4"),
    ):
        with pytest.raises(InputError, match=message):
            _run(*arguments)
    own.write_text("0F0,0F1,0B0,0B1\n1F0,,1B1,1F1,1B0")
    with pytest.raises(InputError, match=r"own.csv: row 2, column 3: 1B1 comes before 1F1"):
        _run("solve", file, "--schedule", own)
    own.write_text(ROWS)
    _run("solve", file, "--schedule", own, "--accelerators", 1, code=3)


def test_a_schedule_for_fewer_devices_than_there_are_and_rules(file: Path, tmp_path: Path) -> None:
    """Rows of a file go to the devices that have their stages; rules name stages of the file."""
    plan, own, part = tmp_path / "plan.json", tmp_path / "own.csv", tmp_path / "part.json"
    own.write_text(ROWS)
    common = ("solve", file, "--schedule", own, "--accelerators", 4, "--json")
    free = json.loads(_run(*common, "-o", plan))
    assert len([device for device in free["devices"] if device["nodes"]]) == 2
    swapped = tmp_path / "swapped.csv"
    swapped.write_text("\n".join(reversed(ROWS.splitlines())))
    for rows in (own, swapped):
        run = json.loads(_run("simulate", file, plan, "--schedule", rows, "--json"))
        assert run["makespan"] == free["objective"]
    third = tmp_path / "third.csv"
    third.write_text(ROWS + "2F0,2B0\n")
    with pytest.raises(InputError, match=r"3 row\(s\); the plan has 2 device\(s\) with stages"):
        _run("simulate", file, plan, "--schedule", third)
    pinned = json.loads(_run(*common, *pinned_to("layers.1", -1), "-o", plan))
    assert pinned["objective"] > free["objective"]
    assert "verified" in _run("verify", file, plan)
    part.write_text(plan.read_text())
    fixed = json.loads(_run(*common, *as_in(part), "-o", plan))
    assert fixed["objective"] == pinned["objective"]
    _run(*common, *as_in(part), *pinned_to("layers.1", 0), code=3)


def pinned_to(node: str, number: int) -> tuple[str, str]:
    """Return the options that put a node onto a device or into a stage."""
    return "--set", f'placement_rules.pins=[["{node}",{number}]]'


def as_in(plan: Path) -> tuple[str, str]:
    """Return the options that leave the nodes of a plan file where they are."""
    return "--set", f"placement_rules.fixed='{plan}'"


def test_a_fixed_part_is_kept_by_compare_and_export_model(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_here(monkeypatch)
    plan, table, model = tmp_path / "plan.json", tmp_path / "t.csv", tmp_path / "m.lp"
    asked = ("--microbatches", 4, "--accelerators", 2)
    pinned = json.loads(
        _run("solve", file, *asked, *pinned_to("layers.1", 1), "-o", plan, "--json")
    )
    fixed = (*asked, *as_in(plan))
    _run("compare", file, "--problem", "pipeline", "--methods", "dp,milp", *fixed, "-o", table)
    objectives = pd.read_csv(table)["objective"].tolist()
    assert objectives == pytest.approx([pinned["objective"]] * 2)
    _run("export-model", file, *asked, "-o", model)
    free = model.read_text()
    _run("export-model", file, *fixed, "-o", model)
    assert model.read_text() != free


def test_an_iteration_leaves_out_the_cpus_that_a_file_suggests(tmp_path: Path) -> None:
    """Where memory is short, too; but not where a node needs them, or they are asked for."""
    times = {"accelerator": np.concatenate((TIMES, 2 * TIMES)), "cpu": np.full(12, 1e3)}
    suggested = accelerators_and_cpus(3, 1)
    workload = trained(times=times, cluster=suggested)
    for problem, known in (("pipeline", (3, 0)), ("throughput", (3, 1))):
        found = suggested_cluster(workload, problem)
        assert found is not None
        assert tuple(kind.count for kind in found.kinds) == known
    lacks = {**times, "accelerator": np.where(np.arange(12) == 2, np.inf, times["accelerator"])}
    assert suggested_cluster(trained(times=lacks, cluster=suggested), "pipeline") == suggested
    save(workload, tmp_path / "w.json")
    short = ("solve", tmp_path / "w.json", "--microbatches", 4, "--memory", "15B")
    _run(*short, code=3)
    answer = json.loads(_run(*short, "--cpus", 1, "--json"))
    assert any(device["kind"] == "cpu" and device["load"] > 0 for device in answer["devices"])


def test_the_table_names_stages_and_what_is_gained(file: Path) -> None:
    shown = _run(
        "solve", file, "--microbatches", 6, "--schedule", "interleaved", "--set", "chunks=2"
    )
    assert "0, 3  accelerator 0" in shown
    for words in ("per iteration of 6", "per microbatch as profiled", "× one device", "bubble"):
        assert words in " ".join(shown.split())
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_times_are_of_a_microbatch(file: Path, tmp_path: Path) -> None:
    """A sample is one example: what times are of is never called so."""
    workload, _, _ = random_training_case(22, max_devices=6)
    layers = tmp_path / "layers.json"
    save(replace(workload, time_unit="ms"), layers)
    of_layers: tuple[object, ...] = ("solve", layers, "--method", "equal-stages")
    of_layers += ("--accelerators", 4, "--microbatches", 8, "--set", "bandwidth=1e9")
    for options, said in (
        (
            ("solve", file, "--problem", "throughput", "--method", "greedy"),
            "per microbatch as profiled",
        ),
        (of_layers, "ms per microbatch"),
    ):
        shown = _run(*options)
        (objective,) = (line for line in shown.splitlines() if "objective  " in line)
        assert objective.endswith(said)
        assert "sample" not in shown


def test_the_problem_follows_the_file_and_the_microbatches() -> None:
    def named(workload: Workload, **options: Any) -> str:
        return state(ProblemOptions(**options), workload).name

    workload = trained()
    inference = replace(workload, backward=np.zeros(workload.n, np.bool_))
    for words in ("net has no backward pass", "--problem pipeline", "profile --train"):
        with pytest.raises(InputError, match=words):
            named(inference, microbatches=8)
    assert named(inference, problem="pipeline", microbatches=8) == "pipeline"
    assert named(inference) == "throughput"
    assert named(workload, microbatches=8) == "pipeline"
    assert named(workload, settings=["microbatches=8"]) == "pipeline"
    assert named(workload) == "throughput"
    layered, cluster, _ = random_training_case(22, max_devices=6)
    assert named(layered, microbatches=8) == "pipeline"
    asked = ProblemOptions(microbatches=8, accelerators=2)
    for of, schedule in ((layered, "stream"), (workload, "1f1b")):
        _, found, _ = build(state(asked, of), asked, replace(of, cluster=cluster))
        assert found == PipelineJob(8, schedule)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--problem", "pipeline"], "microbatches: say how many"),
        (["--schedule", "gpipe"], "--schedule: it belongs to --problem pipeline"),
        (
            ["--microbatches", "4", "--set", "cpu_split=free"],
            "unknown field .cpu_split.; use one of mic",
        ),
        (["--microbatches", "4", "--set", "chunks=2"], "only the schedule interleaved"),
        (["--microbatches", "4", "--schedule", "magic"], "magic"),
        (["--microbatches", "4", "--schedule", "all", "--start", "x"], "not with --schedule"),
    ],
)
def test_wrong_options_are_named(file: Path, options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _run("solve", file, *options)


def test_schedules_are_ranked_at_the_memory_that_there_is(file: Path, tmp_path: Path) -> None:
    workload = trained()
    table = rank_schedules(workload, microbatches=6, limits=Limits(gap=0.01))
    assert set(table["schedule"]) == {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2"}
    assert table["fits"].all()
    assert table["makespan"].is_monotonic_increasing
    for row in table.to_dict("records"):
        run = simulate_plan(workload, row["plan"])
        assert row["makespan"] == run.makespan
        assert row["bound"] <= row["makespan"]
        assert row["peak_bytes"] == max(run.peak_memory.values())
    # GPipe holds six microbatches of two layers: 12 bytes more than their weights and gradients.
    plan = tmp_path / "best.json"
    common = ("solve", file, "--microbatches", 6, "--schedule", "all", "-o", plan, "--memory")
    rows = json.loads(_run(*common, "24B", "--json"))["schedules"]
    by_name = {row["schedule"]: row for row in rows}
    assert by_name["1f1b"]["fits"]
    assert not by_name["gpipe"]["fits"]
    assert by_name["gpipe"]["peak_bytes"] > 24
    best = load_plan(plan, workload)
    assert is_iteration(best.problem)
    assert best.problem.schedule == rows[0]["schedule"]
    assert best.objective == rows[0]["makespan"]
    shown = _run(*common, "24B")
    assert all(len(line) <= 80 for line in shown.splitlines() if "│" in line)
    _run(*common, "10B", code=3)


def test_a_plan_of_least_max_load_says_what_it_is_right_for(file: Path) -> None:
    assert "right for" in _run("solve", file, "--method", "dp", "--split", "contiguous")
    assert "right for" not in _run("solve", file, "--problem", "throughput")


WHOLE = PlacementRules(together=(("*",),))


@pytest.mark.parametrize(
    ("changes", "problem", "devices", "reason"),
    [
        ({}, PipelineJob(1), 3, "give more --microbatches"),
        ({}, PipelineJob(8), 1, "there is one device"),
        ({"colours": np.zeros(12, int)}, PipelineJob(8), 3, "12 nodes of colour 0 share a device"),
        (
            {"colours": np.tile([0, 1, 2, 3, 4, 0], 2)},
            Throughput(split="contiguous"),
            3,
            "because of colour.* and the contiguous split",
        ),
        ({"transfer": 100.0}, Throughput(), 3, "costs more in transfers and waiting"),
        ({}, PipelineJob(8, placement_rules=WHOLE), 3, "keeps the placement rules"),
    ],
)
def test_no_gain_has_a_reason(
    changes: dict[str, object], problem: PipelineJob | Throughput, devices: int, reason: str
) -> None:
    import re

    workload = trained(**changes)  # type: ignore[arg-type]
    result = solve(workload, accelerators_and_cpus(devices), problem, limits=Limits())
    found = gain(workload, result)
    assert found is not None
    assert found.speed_up <= 1.005
    assert re.search(reason, found.reason), found.reason


def test_no_gain_for_want_of_memory_on_the_fastest_kind() -> None:
    workload = trained()
    times = {"cpu": 10 * workload.times["accelerator"], **workload.times}
    result = solve(replace(workload, times=times), accelerators_and_cpus(1, 1, memory_bytes=1.0))
    found = gain(replace(workload, times=times), result)
    assert found is not None
    assert found.speed_up < 1
    assert "the device of the fastest kind does not have the memory" in found.reason


def test_launchers_are_told_schedule_and_microbatches() -> None:
    workload = trained()
    texts = {}
    for schedule in ("1f1b", "gpipe", "interleaved", "zb-h1"):
        plan = solve(workload, problem=PipelineJob(6, schedule), limits=Limits(gap=0.05)).plan  # type: ignore[arg-type]
        assert plan is not None
        for name in ("torchtitan", "megatron", "deepspeed"):
            try:
                texts[schedule, name] = launcher_file(workload, plan, name)[0]
            except InputError as error:
                texts[schedule, name] = f"refused: {error}"
        with pytest.raises(InputError, match="leave it out"):
            schedule_to_run(plan, "1f1b" if schedule != "1f1b" else "gpipe", None)
        assert schedule_to_run(plan, None, 6) == (schedule, 6)
    assert "'GPipe'" in texts["gpipe", "torchtitan"]
    assert "local_batch_size = 6" in texts["1f1b", "torchtitan"]
    assert "--global-batch-size 6" in texts["interleaved", "megatron"]
    assert "MICROBATCHES = 6" in texts["1f1b", "deepspeed"]
    assert "it runs 1f1b and interleaved" in texts["gpipe", "megatron"]
    assert "it runs 1f1b" in texts["interleaved", "deepspeed"]
    assert "made for zb-h1" in texts["zb-h1", "torchtitan"]
