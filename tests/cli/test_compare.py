"""Comparisons: one process per case, resumed where they stopped, crashes kept as rows."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Hashable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cli_cases import compare_here, placement_file
from rich.console import Console
from typer.testing import CliRunner

from stagecut import (
    DeviceMapping,
    InputError,
    Latency,
    Limits,
    PipelineJob,
    Throughput,
    Workload,
    accelerators_and_cpus,
    compare,
    load,
    save,
    topology,
)
from stagecut.api.cases import read_record, run_cases
from stagecut.api.compare import Case, Row, summaries, tabulate
from stagecut.cli import app
from stagecut.commands.compare import _cells, _table, unique_names
from stagecut.instances import Cluster, Problem
from stagecut.runtime.pictures.charts import draw_comparison

METHODS = ["greedy", "dp"]
#: Of each case: no test waits for it, however busy the machine.
SECONDS = 300
CONTIGUOUS = Throughput(split="contiguous")


def chain() -> Workload:
    """Return three nodes in a row, with all that every problem counts."""
    return Workload(
        name="chain",
        ids=(0, 1, 2),
        edges=np.array([(0, 1), (1, 2)]),
        times={"accelerator": np.array([1.0, 2.0, 3.0]), "cpu": np.full(3, 9.0)},
        memory_bytes=np.ones(3),
        transfer=np.full(3, 0.1),
        output_bytes=np.full(3, 10.0),
        time_unit="ms",
    )


def cases(
    workloads: Sequence[Workload],
    methods: Sequence[str],
    problem: Problem = CONTIGUOUS,
    cluster: Cluster | None = None,
) -> list[Case]:
    """Return every workload with every method."""
    limits = Limits(seconds=SECONDS, gap=0.01)
    return [
        Case(one.name, one, "throughput", problem, method, cluster, limits)
        for one in workloads
        for method in methods
    ]


def some_cases(tmp_path: Path, *methods: str) -> list[Case]:
    """Return cases of one workload."""
    return cases([load(placement_file(tmp_path))], methods)


@pytest.fixture
def _cases_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run cases in this process; other tests show that each has one of its own."""
    compare_here(monkeypatch)


def test_a_table_with_a_row_per_case_that_resumes(tmp_path: Path) -> None:
    files = [
        placement_file(tmp_path, f"net {i}.json", maxFPGAs=i, maxSizePerFPGA=200.0) for i in (1, 2)
    ]
    todo = cases([load(file) for file in files], METHODS)
    seen: list[Row] = []
    table = run_cases(todo[:3], tmp_path / "table.csv", on_row=seen.append)
    assert len(table) == len(seen) == 3
    record = tmp_path / "table.csv.jsonl"
    before = record.read_text()
    table = run_cases(todo, tmp_path / "table.csv", jobs=2)
    assert record.read_text().startswith(before)  # the first three were not run again
    assert len(read_record(record)[0]) == 4
    assert list(table["objective"]) == [8.0, 8.0, 4.5, 4.5]
    assert list(table["ratio"]) == pytest.approx([1.0] * 4, rel=1e-6)
    assert (tmp_path / "table.csv").read_text().count("\n") == 5
    draw_comparison(table, tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


class Ends(Limits):
    """Limits that end the process that reads them."""

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (7,)


def test_a_case_that_crashes_is_a_row(tmp_path: Path) -> None:
    good, silent, bad = some_cases(tmp_path, "greedy", "dp", "random")
    silent = dataclasses.replace(silent, limits=Ends(seconds=SECONDS))
    bad = dataclasses.replace(bad, problem=Throughput(split="contiguous", relayed=True))
    table = run_cases([bad, silent, good], tmp_path / "table.csv")
    assert list(table["status"]) == ["error", "crashed", "feasible"]
    assert table["error"][0].startswith("method: random cannot price relayed")
    assert table["error"][1].startswith("exit code 7: ")


@pytest.mark.usefixtures("_cases_here")
def test_a_comparison_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    todo = some_cases(tmp_path, "greedy", "single")
    record = tmp_path / "table.csv.jsonl"
    run_cases(todo[:1], tmp_path / "table.csv")
    record.write_text(record.read_text() + '{"key": "b", "ro')
    run_cases(todo, tmp_path / "table.csv")
    assert list(read_record(record)[0]) == [case.key for case in todo]
    assert record.read_text().count("\n") == 2


@pytest.mark.usefixtures("_cases_here")
def test_cases_of_damaged_lines_run_again(tmp_path: Path) -> None:
    record = tmp_path / "table.csv.jsonl"
    todo = some_cases(tmp_path, "greedy", "single")
    table = run_cases(todo, tmp_path / "table.csv")
    whole = record.read_bytes()
    first, second = whole.splitlines(keepends=True)
    objectives = dict(zip([case.key for case in todo], table["objective"], strict=True))
    digit = first.index(b'"objective": ') + len(b'"objective": ')
    other = b"7" if first[digit : digit + 1] != b"7" else b"8"
    for damaged, lines in [
        (first + second[:-20], 1),  # cut off
        (b"\xff" + first + second, 1),
        (first[:digit] + other + first[digit + 1 :] + second, 1),
        (first.replace(b'"bound": ', b'"bound": "x", "y": ') + second, 1),
        (first + b"[[[\n5\n" + second, 2),
        (whole[:-1], 1),
    ]:
        record.write_bytes(damaged)
        found, broken = read_record(record)
        assert broken == lines
        assert all(
            row["status"] == "feasible" or row["status"] == "optimal" for row in found.values()
        )
        cut_off = damaged == first + second[:-20]  # this case runs again; the others are not asked
        asked = [case for case in todo if cut_off or case.key in found]
        told: list[str] = []
        again = run_cases(asked, tmp_path / "table.csv", on_notice=told.append)
        assert list(again["objective"]) == [objectives[case.key] for case in asked]
        assert len(told) == 1
        assert read_record(record)[1] == 0
        assert len(read_record(record)[0]) == len(asked)


def test_files_of_one_name_are_told_apart() -> None:
    names = unique_names(["small/net.json", "large/net.json"])
    assert list(names.values()) == ["small/net", "large/net"]


def test_cases_run_on_a_dask_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    todo = some_cases(tmp_path, *METHODS)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as local:
        table = run_cases(todo, tmp_path / "table.csv", scheduler=local.scheduler_address)
    assert list(table["objective"]) == [4.5, 4.5]


def test_a_dask_address_without_a_scheduler_is_bad_input(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    todo = some_cases(tmp_path, "greedy")
    with pytest.raises(InputError, match=r"^scheduler: no Dask scheduler answers"):
        run_cases(todo, tmp_path / "table.csv", scheduler="nonsense://127.0.0.1:1")


def test_in_python_problems_of_every_kind_are_compared() -> None:
    workload = chain()
    pair = accelerators_and_cpus(2)
    problems = [Throughput(), Latency(), DeviceMapping(topology("ring:2"), 2, 1, "p2p")]
    seen: list[Row] = []
    table = compare(workload, problems, ["auto", "greedy", "lns"], cluster=pair, on_row=seen.append)
    kinds = (
        ["throughput"] * 2 + ["latency"] * 3 + ["mapping, stages=2, mode=p2p, collective=cheapest"]
    )
    assert list(table["problem"]) == kinds  # no method of other problems
    assert list(table["method"]) == ["auto", "greedy", "auto", "greedy", "lns", "auto"]
    assert set(table["status"]) <= {"optimal", "feasible"}
    assert table["verified"].all()
    assert (table["ratio"] > 1 - 1e-9).all()
    assert [row["plan"] for row in seen] == list(table["plan"])
    for row, plan in zip(seen, table["plan"], strict=True):
        assert row["objective"] == plan.objective


def test_in_python_names_are_told_apart_and_errors_are_rows() -> None:
    workload = chain()
    with pytest.raises(InputError, match="two workloads have one name"):
        compare([workload, workload])
    with pytest.raises(InputError, match="no method 'magic'"):
        compare(workload, methods=["auto", "magic"])
    with pytest.raises(InputError, match="at least one"):
        compare([])
    one = accelerators_and_cpus(1)
    table = compare({"a": workload, "b": workload}, {"relayed": Throughput(split="contiguous",
                    relayed=True)}, ["random", "dp"], cluster=one)  # fmt: skip
    assert list(table["workload"]) == ["a", "a", "b", "b"]
    assert set(table["problem"]) == {"relayed"}
    assert list(table["status"]) == ["error", "optimal"] * 2
    assert "cannot price relayed" in table["error"][0]


@pytest.mark.usefixtures("_cases_here")
def test_the_command_compares_for_other_objectives(tmp_path: Path) -> None:
    path, out = str(placement_file(tmp_path)), tmp_path / "table.csv"
    arguments = ["compare", path, "-o", str(out), "--problem", "latency", "--time-limit", "20"]
    done = CliRunner().invoke(app, [*arguments, "--methods", "greedy"], catch_exceptions=False)
    assert done.exit_code == 0
    (row,) = pd.read_csv(out).to_dict("records")
    assert (row["problem"], row["method"], row["verified"]) == ("latency", "greedy", True)
    with pytest.raises(InputError, match="no 'dpl' for latency"):
        CliRunner().invoke(app, [*arguments, "--methods", "dpl"], catch_exceptions=False)
    with pytest.raises(InputError, match="--split: it belongs to --problem throughput"):
        CliRunner().invoke(app, [*arguments, "--split", "contiguous"], catch_exceptions=False)


@pytest.mark.usefixtures("_cases_here")
def test_iterations_are_compared_with_what_frameworks_do(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    names = tuple(f"layers.{v}.mlp" for v in range(5))
    workload = Workload(
        name="net",
        ids=names,
        edges=np.array([(v, v + 1) for v in range(4)]),
        times={"accelerator": np.array([1.0, 3.0, 1.0, 1.0, 2.0])},
        memory_bytes=np.ones(5),
        transfer=np.zeros(5),
        time_unit="ms",
        cluster=accelerators_and_cpus(2),
    )
    save(workload, path)
    options = ["--problem", "pipeline", "--microbatches", "4", "--time-limit", str(SECONDS)]
    options += ["--gap", "0", "--methods", "auto,vllm,megatron,deepspeed-type:layers.[34]"]
    done = CliRunner().invoke(app, ["compare", str(path), *options], catch_exceptions=False)
    assert done.exit_code == 0
    # stages of 4 and 4 against 5 and 3
    assert done.stdout == "net: auto 20 ms, 13.0 % faster than vllm, the best other method\n"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="microbatches: say how many an iteration has"):
        CliRunner().invoke(app, ["compare", str(path), *options[:2]], catch_exceptions=False)


@pytest.mark.usefixtures("_cases_here")
def test_the_command_takes_what_solve_takes_of_the_problem(tmp_path: Path) -> None:
    def run(*options: str) -> list[dict[Hashable, Any]]:
        out = tmp_path / "table.csv"
        out.unlink(missing_ok=True)
        arguments = ["compare", path, "-o", str(out), "--time-limit", str(SECONDS), *options]
        arguments += ["--accelerators", "2"]
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
        return pd.read_csv(out).to_dict("records")

    path = str(tmp_path / "net.json")
    save(chain(), path)
    common = ("--split", "contiguous", "--methods")
    (direct,) = run(*common, "dp")
    relayed, random = run(*common, "dp,random", "--set", "relayed=true")
    assert direct["objective"] <= relayed["objective"]
    assert (random["status"], relayed["status"]) == ("error", "optimal")
    assert random["error"].startswith("method: random cannot price relayed data")
    (beside,) = run(*common, "dp", "--set", "overlap=true,placement_rules.max_stages=2")
    assert beside["objective"] < direct["objective"]
    (row,) = run("--problem", "latency", "--set", "calls=2", "--methods", "greedy")
    assert row["status"] in ("feasible", "optimal")
    asked = " ".join(read_record(tmp_path / "table.csv.jsonl")[0])
    assert '"calls": 2' in asked
    for options, refusal in (
        (["--set", "calls=2"], "unknown field .calls.; use one of split"),
        (["--set", "workers.count=2"], "unknown field .workers."),
        (["--problem", "throughput", "--problem", "latency", "--methods", "x"], "no .x. for"),
        (["--for", "run"], "--for run: chain is of no PyTorch model"),
        (["--mesh", "2"], "--mesh: it belongs to --problem sharding"),
    ):
        with pytest.raises(InputError, match=refusal):
            run(*options)


def test_what_one_method_proves_holds_for_all() -> None:
    workload = dataclasses.replace(chain(), names=tuple(f"layers.{v}" for v in range(3)))
    table = compare(
        workload, PipelineJob(4), ["vllm", "dp", "deepspeed-type:layers.2"],
        cluster=accelerators_and_cpus(2), limits=Limits(),
    ).set_index("method")  # fmt: skip
    best = table["objective"]["dp"]
    assert table["bound"]["vllm"] < table["bound"]["dp"] == pytest.approx(best)
    assert list(table["best_bound"]) == [table["bound"]["dp"]] * 3
    for method, row in table.iterrows():
        expected = 1 - table["bound"]["dp"] / row["objective"]
        assert row["gap"] == pytest.approx(expected), method
        assert row["ratio"] == pytest.approx(row["objective"] / best)


def test_the_bound_beside_a_gap_is_the_one_that_the_gap_is_to() -> None:
    case = {"workload": "chain", "problem": "throughput", "status": "feasible", "limit": "none"}
    both = [("greedy", 12.0, 2.0), ("dp", 10.0, 9.0)]
    rows = [
        {**case, "method": m, "objective": o, "bound": b, "seconds": 1.0, "error": None}
        for m, o, b in both
    ]
    shown = [_cells([row]) for row in tabulate(rows).to_dict("records")]
    assert [cells[3:5] for cells in shown] == [["9", "25.000 %"], ["9", "10.000 %"]]


def test_a_table_of_one_workload_has_room_for_the_names_of_methods() -> None:
    """What all rows share is said once, above them."""
    case = {"problem": "pipeline", "status": "feasible", "limit": "none", "error": None}
    numbers = {"objective": 2.0, "bound": 1.0, "seconds": 1.0}
    rows = [
        {**case, **numbers, "workload": name, "method": "deepspeed-uniform"}
        for name in ("first", "second")
    ]
    console = Console(width=80, record=True, file=StringIO())
    console.print(_table(rows[:1], 2, set()), _table(rows, 2, {"ms"}))
    one, both = console.export_text().split("of 2 cases")[:2]
    assert [word in one for word in ("first, pipeline", "deepspeed-uniform")] == [True] * 2
    assert [word in one for word in ("problem", "workload", "…")] == [False] * 3
    assert [word in both for word in ("workload", "second")] == [True] * 2


def test_another_cluster_problem_or_limit_is_another_case() -> None:
    (case,) = cases([chain()], ["single"])
    others = [
        dataclasses.replace(case, cluster=accelerators_and_cpus(2)),
        dataclasses.replace(case, problem=Throughput(split="contiguous", relayed=True)),
        dataclasses.replace(case, workload=dataclasses.replace(chain(), memory_bytes=np.zeros(3))),
        dataclasses.replace(case, limits=Limits(seconds=SECONDS, gap=0.02)),
    ]
    assert len({one.key for one in (case, *others)}) == 5


def test_a_method_without_a_plan_says_why() -> None:
    table = compare(chain(), PipelineJob(4), ["vllm"], cluster=accelerators_and_cpus(2))
    assert list(table["status"]) == ["no solution"]
    assert table["error"][0].startswith("vllm: the names of the nodes name no modules")


def test_what_a_method_gains_in_one_line() -> None:
    def said(*objectives: float | None) -> list[str]:
        rows: list[Row] = [
            {"workload": "net", "problem": "p", "method": method, "objective": objective}
            for method, objective in zip(("auto", "a", "b"), objectives, strict=False)
        ]
        return summaries(tabulate(rows), {"net": "ms"})

    assert said(3.0, 4.0, 5.0) == ["net: auto 3 ms, 25.0 % faster than a, the best other method"]
    assert said(3.0, 4.0, 2.5) == ["net: auto 3 ms, 20.0 % slower than b, the best other method"]
    assert said(3.0, 3.0) == ["net: auto 3 ms, as fast as a, the best other method"]
    assert said(0.0, 0.0) == ["net: auto 0 ms, as fast as a, the best other method"]
    assert said(3.0, None) == ["net: auto 3 ms; no other method has a plan"]
    assert said(None, 3.0) == said(3.0) == []


def test_ratios_of_several_workloads_are_said_by_method() -> None:
    objectives = {"x": (2.0, 3.0, 2.0), "y": (4.0, 12.0, None), "z": (1.0, 1.0, 5.0)}
    rows: list[Row] = [
        {"workload": name, "problem": "p", "method": method, "objective": objective}
        for name, values in objectives.items()
        for method, objective in zip(("auto", "a", "b"), values, strict=True)
    ]
    assert summaries(tabulate(rows), dict.fromkeys(objectives, "ms"))[3:] == [
        "a: 3.00 times auto at most, 1.83 on average, of 3",
        "b: 5.00 times auto at most, 3.00 on average, of 2",
    ]


@pytest.mark.usefixtures("_cases_here")
def test_one_reason_of_several_methods_is_said_once(tmp_path: Path) -> None:
    path = str(placement_file(tmp_path))
    options = ["--problem", "pipeline", "--microbatches", "4", "--accelerators", "2"]
    options += ["--methods", "megatron,vllm,dp", "--time-limit", str(SECONDS)]
    done = CliRunner().invoke(app, ["compare", path, *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stderr.endswith("\n")
    said = " ".join(done.stderr.split())
    assert said.count("name no modules") == 1
    assert "pipeline: megatron, vllm: the names of the nodes name no modules" in said
    assert "3 of 3 cases" in said
