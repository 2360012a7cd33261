"""`stagecut simulate` and `stagecut diff`, by their commands."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from conformance import chain
from pipelines import plan_of, random_plan
from training_cases import random_training_case
from typer.testing import CliRunner

from stagecut import InputError, Latency, PipelineJob, Throughput, Workload, save, solve
from stagecut.cli import run_command
from stagecut.commands.diff import diff
from stagecut.commands.simulate import print_simulation, simulate
from stagecut.instances import DeviceMapping, accelerators_and_cpus, topology
from stagecut.runtime.simulate.simulator import simulate_stages
from stagecut.runtime.simulate.stages import chain as simulator_chain

app = typer.Typer()
app.command()(simulate)
app.command()(diff)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workload and two plans for it."""
    folder = tmp_path_factory.mktemp("plans")
    found = random_plan(42, max_nodes=10)
    assert found is not None
    workload, plan = found
    device = plan.placement.copy()
    device[0] = (device[0] + 1) % plan.cluster.size
    save(workload, folder / "workload.json")
    save(plan, folder / "plan.json", workload)
    save(plan_of(workload, plan.cluster, device), folder / "other.json", workload)
    return folder


def _run(*arguments: str | Path):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_json_has_what_is_asked_for(files: Path) -> None:
    result = _run(
        "simulate", files / "workload.json", files / "plan.json", "--schedule", "pipedream",
        "--microbatches", "6", "--json",
    )  # fmt: skip
    answer = json.loads(result.stdout)
    plan = json.loads((files / "plan.json").read_text())
    assert {"makespan", "time_per_sample", "bubble", "peak_memory"} <= answer.keys()
    assert answer["time_per_sample"] == pytest.approx(plan["objective"], rel=1e-9)
    assert answer["microbatches"] == 6
    assert len(answer["peak_memory"]) == len(answer["devices"])


def test_files_are_written(files: Path, tmp_path: Path) -> None:
    common = ["simulate", files / "workload.json", files / "plan.json"]
    result = _run(
        *common, "--trace", tmp_path / "t.json", "--plot", tmp_path / "t.svg", "--graph",
        tmp_path / "g.png", "--csv", tmp_path / "s.csv",
    )  # fmt: skip
    assert "makespan" in result.stdout
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "</svg>" in (tmp_path / "t.svg").read_text()
    _run(*common, "--plot", tmp_path / "t.html")
    assert "</html>" in (tmp_path / "t.html").read_text()
    again = json.loads(_run(*common, "--schedule", tmp_path / "s.csv", "--json").stdout)
    first = json.loads(_run(*common, "--json").stdout)
    assert again["makespan"] == first["makespan"]


def test_what_is_printed_says_what_it_is_of(tmp_path: Path) -> None:
    workload = chain(
        [3.0, 1.0, 2.0], time_unit="ms", extra={"activation_bytes": np.full(3, 2048.0)}
    )
    plan = solve(workload, accelerators_and_cpus(2), Throughput("contiguous", overlap=True)).plan
    assert plan is not None
    plan = replace(plan, cluster=accelerators_and_cpus(2, memory_bytes=1024.0))
    save(workload, tmp_path / "w.json")
    save(plan, tmp_path / "p.json", workload)
    said = _run("simulate", tmp_path / "w.json", tmp_path / "p.json", "--microbatches", "1").stdout
    for words in (
        "2 stages, 1 microbatch\n", "(ms)", "ms for 1 microbatch\n", "ms per microbatch\n",
        "transfers  beside compute", "needs 2.00 KiB at its peak, 1.00 KiB more than its 1.00 KiB",
    ):  # fmt: skip
        assert words in re.sub(" +\n", "\n", said), words
    shown = _run("diff", tmp_path / "p.json", tmp_path / "p.json").stdout
    shown = " ".join(shown.replace("│", " ").split())
    assert f"objective {plan.objective:g} ms {plan.objective:g} ms" in shown
    assert "throughput, contiguous" in shown
    assert "CPUs contiguous" not in shown  # as usual
    assert "time_unit=ms" in repr(solve(workload, accelerators_and_cpus(1), Throughput()))


def test_every_kind_of_plan_is_simulated_and_drawn(tmp_path: Path) -> None:
    for name, workload, plan in _plans():
        save(workload, tmp_path / f"{name}.workload.json")
        save(plan, tmp_path / f"{name}.json", workload)
        common = ["simulate", tmp_path / f"{name}.workload.json", tmp_path / f"{name}.json"]
        answer = json.loads(_run(*common, "--json").stdout)
        assert answer["makespan"] > 0
        assert (answer["busiest_link"] is not None) == (name == "mapping")
        shown = _run(
            *common, "--plot", tmp_path / f"{name}.png", "--trace", tmp_path / f"{name}.trace.json",
            "--graph", tmp_path / f"{name}.graph.png",
        ).stdout  # fmt: skip
        assert ("busiest link" in shown) == (name == "mapping")
        assert json.loads((tmp_path / f"{name}.trace.json").read_text())["traceEvents"]
        same = _run("diff", tmp_path / f"{name}.json", tmp_path / f"{name}.json", "--json")
        assert json.loads(same.stdout)["moved"] == []
        if name in ("training", "mapping"):
            host = ["--schedule", "2bw", "--network", "host", "--json"]
            answer = json.loads(_run(*common, *host).stdout)
            batch = answer["microbatches"] if name == "mapping" else 1
            assert answer["time_per_sample"] * batch == pytest.approx(plan.objective, rel=1e-9)


def _plans():
    """A plan of every kind."""
    workload, cluster, _ = random_training_case(22, max_devices=6)
    yield "training", workload, solve(workload, cluster, PipelineJob()).plan
    chain = Workload(
        name="chain",
        ids=tuple(range(6)),
        edges=np.array([(v, v + 1) for v in range(5)]),
        times={"accelerator": np.arange(1.0, 7.0), "cpu": np.full(6, 9.0)},
        memory_bytes=np.ones(6),
        transfer=np.full(6, 0.5),
        output_bytes=np.full(6, 1e6),
        backward=np.arange(6) >= 3,
        colours=np.array([0, 1, 2, 2, 1, 0]),
        time_unit="ms",
        extra={"weight_bytes": np.full(6, 1e6)},
    )
    relayed = Throughput(split="contiguous", relayed=True)
    yield "throughput", chain, solve(chain, accelerators_and_cpus(2), relayed).plan
    mapping = DeviceMapping(topology("mesh2d:2x3"), 3, 2, "both", microbatches=3)
    yield "mapping", chain, solve(chain, problem=mapping).plan
    forward = replace(chain, backward=np.zeros(6, bool), colours=np.full(6, -1), colour_labels=())
    latency = solve(forward, accelerators_and_cpus(2), Latency(), method="greedy").plan
    yield "latency", forward, latency


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schedule", "none"], "no 'none'; use one of gpipe"),
        (["--schedule", "none.csv"], "no such file"),
        (["--microbatches", "0"], "at least 1"),
        (["--network", "p2p"], "give --bandwidth"),
        (["--network", "wifi"], "is not one of host, p2p, bus"),
        (["--network", "topology"], "not mapped"),
        (["--weight-share", "2"], "from 0 to 1"),
        (["--schedule", "{folder}/s.csv", "--microbatches", "3"], "says how many there are"),
        (["--schedule", "{folder}/odd.csv"], "not UTF-8"),
        (["--latency", "1e-5"], "give its --bandwidth"),
        (["--sharing", "fifo"], "--network bus"),
        (["--plot", "no/such/folder.svg"], "folder does not exist"),
    ],
)
def test_wrong_options_are_named(files: Path, options: list[str], message: str) -> None:
    (files / "s.csv").write_text("0F0\n")
    (files / "odd.csv").write_bytes(b"0F0,\xe9\n")
    given = [option.format(folder=files) for option in options]
    with pytest.raises(InputError, match=message):
        _run("simulate", files / "workload.json", files / "plan.json", *given)


def test_two_plans_side_by_side(files: Path) -> None:
    both = ["diff", files / "plan.json", files / "other.json"]
    assert "moved" in _run(*both).stdout
    answer = json.loads(_run(*both, "--json").stdout)
    assert answer["first"]["objective"] > 0
    same = json.loads(_run("diff", files / "plan.json", files / "plan.json", "--json").stdout)
    assert same["moved"] == []


def test_tables_show_numbers_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stages = simulator_chain([1.23456e-3, 2.34567e-3], [1.23456e-3, 2.34567e-3])
    print_simulation("a chain", simulate_stages(stages, "1f1b", 3))
    two = ["--accelerators", "2", "--memory", "4GiB", "--method", "greedy"]
    assert run_command(["solve", "gpt2-xl", "--problem", "latency", *two]) == 0
    said = capsys.readouterr().out
    assert "times (ms)" in said
    assert "…" not in said
    assert "0.0074074" in said  # seconds of compute, all digits
