"""Exports of plans of ten models to every launcher, as the command line makes them.

    python benchmarks/exports.py

Each model has one plan made for no launcher, and one for each launcher (``--for``). Each launcher
is given both. Writes `results/exports.csv`: what the launcher took, or the line that refuses it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from results import write

from stagecut.cli import run_command
from stagecut.runtime.export.job import JOB_LAUNCHERS
from stagecut.runtime.export.registry import CSV, LAUNCHERS, PYTHON

BENCHMARKS = Path(os.environ.get("STAGECUT_BENCHMARKS", "../shared/benchmarks"))
GRAPHS = BENCHMARKS / "placement" / "throughput" / "OperatorGraphs"
OWN = f"{Path(__file__).with_name('models.py')}:mlp"
GRAPH_LAUNCHERS = (PYTHON, CSV, *LAUNCHERS)


@dataclass(frozen=True)
class Case:
    """A model, the options it is planned with, and the launchers asked."""

    name: str  # as the table has it
    workload: str  # what `solve` takes
    options: tuple[str, ...]
    launchers: tuple[str, ...] = GRAPH_LAUNCHERS
    model: str = ""  # factory, where there is one


def job(name: str, cluster: str, batch: int, sequence: int) -> Case:
    """Return a training job."""
    options = ("--cluster", cluster, "--global-batch", str(batch), "--sequence", str(sequence))
    return Case(name, name, (*options, "--time-limit", "30"), tuple(JOB_LAUNCHERS))


def cases(folder: Path) -> list[Case]:
    """Return the ten models; the profile of one is written into a folder."""
    own = folder / "own.json"
    profiled = ("profile", OWN, "--train", "--estimate", "h100", "--depth", "2", "-o", str(own))
    code, text = said(*profiled)
    if code:
        raise SystemExit(text)
    graph = ("--accelerators", "4", "--microbatches", "8", "--time-limit", "20")
    published = GRAPHS / "bert_l-3_training.json"
    return [
        job("llama3-8b", "h100:16", 256, 8192),
        job("llama3-70b", "h100:64", 512, 8192),
        job("gpt3-175b", "a100-80gb:128", 1536, 2048),
        job("mixtral-8x7b", "h100:64", 256, 4096),
        job("qwen3-235b-a22b", "h100:256", 2048, 4096),
        job("deepseek-v3", "h100:256", 4096, 4096),
        Case("own model, profiled", str(own), graph, model=OWN),
        Case("gpt2-xl-training", "gpt2-xl-training", graph),
        Case("published operators of BERT", str(published), ("--time-limit", "20")),
        Case("resnet50-training", "resnet50-training", graph),
    ]


def said(*arguments: str) -> tuple[int, str]:
    """Run a command, and return its exit code and the last line that it printed."""
    out, problem = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(problem):
        code = run_command(arguments)
    texts = (problem, out) if code else (out,)
    lines = [line for text in texts for line in text.getvalue().strip().splitlines()]
    failed = [line for line in lines if line.startswith("error: ")]
    return code, (failed or lines or [""])[-1].removeprefix("error: ")


def exported(case: Case, plan: Path, launcher: str, folder: Path) -> str:
    """Return ``exported``, or why not."""
    given = ["export", str(plan), "--to", launcher, "-o", str(folder / f"{plan.stem}-{launcher}")]
    if case.launchers is GRAPH_LAUNCHERS:
        given += ["--workload", case.workload]
        given += ["--model", case.model] if launcher == PYTHON and case.model else []
    code, text = said(*given)
    return text if code else "exported"


def rows(case: Case, folder: Path) -> Iterator[dict[str, str]]:
    """Yield what each launcher made of a plan for none, and of one for it."""
    plans = {}
    of_job = case.launchers is not GRAPH_LAUNCHERS  # which are planned for no table of passes
    for launcher in ("", *(x for x in case.launchers if not (of_job and x == CSV))):
        plan = folder / f"{case.name.replace(' ', '-')}-{launcher or 'any'}.json"
        wanted = ("--for", launcher) if launcher else ()
        code, text = said("solve", case.workload, *case.options, *wanted, "-o", str(plan))
        plans[launcher] = (text if code else "", plan)
    for launcher in case.launchers:
        found = {"model": case.name, "launcher": launcher}
        for column, wanted_for in (("plan for none", ""), ("plan for it", launcher)):
            why, plan = plans.get(wanted_for, ("–", Path()))
            found[column] = why or exported(case, plan, launcher, folder)
        yield found


def main() -> None:
    """Export all, and write the table."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        found = []
        for case in cases(folder):
            for row in rows(case, folder):
                found.append(row)
                print(" | ".join(row.values()), file=sys.stderr, flush=True)
        write("exports", found, seed="0")


if __name__ == "__main__":
    main()
