"""Every installed solver of integer programs on weak and strong forms, and on random small cases.

``table`` solves six instances in two forms each, and writes a row per solver and form to
`solvers.csv` anew. ``random`` solves random cases, each without and with a random constraint,
counts how often the optimum of brute force was found, and adds rows to `solvers_random.csv`.
``first-model`` times the first lines of docs/formulations.md in a fresh environment. Needs
`tests/support` on the path.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import results
from brute_sharding import random_problem, random_program
from constrained_cases import MAKERS, check_against_brute_force, drawn
from pyomo.environ import Var

import stagecut
from stagecut import InputError, Latency, Limits, StagecutError, Throughput
from stagecut.instances import Problem, Workload
from stagecut.solvers.core.other_solvers import SOLVERS, check_solver

ROOT = Path(__file__).parent.parent

#: Problem → its form with the weaker relaxation, and its stronger one.
FORMS = {
    "throughput": ("by-device", "compact"),
    "latency": ("big-m", "potentials"),
    "sharding": ("compact", "flows"),
}


def instances() -> Iterator[tuple[str, Workload, stagecut.Cluster | None, Problem]]:
    """Yield two instances of each problem."""
    devices = stagecut.accelerators_and_cpus
    yield "unet, contiguous", stagecut.load("unet"), devices(3, cpus=0), Throughput("contiguous")
    yield (
        "resnet50, contiguous",
        stagecut.load("resnet50"),
        devices(3, cpus=0),
        Throughput("contiguous"),
    )
    yield "unet, one call", stagecut.load("unet"), devices(2, cpus=1), Latency(1)
    yield "unet, two calls", stagecut.load("unet"), devices(2, cpus=1), Latency(2)
    for seed in (4, 9):
        rng = np.random.default_rng(seed)
        workload = random_program(rng, most=14)
        yield f"program of {workload.n} operators", workload, None, random_problem(rng, (2, 4))


def installed() -> list[str]:
    """Return the solvers that are installed."""
    found = ["highs"]
    for name in SOLVERS:
        try:
            check_solver(name)
        except InputError:
            continue
        found.append(name)
    return found


def table(seconds: float) -> None:
    """Solve all instances in both forms."""
    rows: list[results.Row] = []
    for what, workload, cluster, problem in instances():
        for form, solver in itertools.product(FORMS[problem.name], installed()):
            f = stagecut.formulation(workload, cluster, problem, form)
            began, cpu = time.monotonic(), sum(os.times()[:4])
            result = f.solve(solver, limits=Limits(seconds=seconds, gap=1e-6))
            took, cpu = time.monotonic() - began, sum(os.times()[:4]) - cpu
            failed = any(" failed, and" in note for note in result.notes)
            rows.append(
                {"problem": problem.name, "instance": what, "form": form, "solver": solver,
                 "columns": str(sum(1 for _ in f.model.component_data_objects(Var))),
                 "seconds": f"{took:.2f}", "cpu": f"{cpu:.2f}",
                 "gap": "" if result.gap is None else f"{result.gap:.4%}",
                 "end": "licence" if failed else str(result.status)}
            )  # fmt: skip
    results.write("solvers", rows, "")


def random(problems: Sequence[str], count: int) -> None:
    """Compare random cases with brute force; rows of each problem are added to the table."""
    for problem in problems:
        found = {solver: [0, 0, 0.0] for solver in installed()}
        cases, seeds = 0, itertools.count()
        while cases < count:
            seed = next(seeds)
            if drawn(problem, seed) is None:
                continue
            cases += 1
            for solver, row in found.items():
                began = sum(os.times()[:4])  # CBC and glpk are programs of their own
                try:
                    row[0] += bool(check_against_brute_force(problem, seed, solver))
                except (AssertionError, StagecutError) as error:
                    row[1] += 1
                    print(f"{problem} {solver} {seed}: {error}", flush=True)
                row[2] += sum(os.times()[:4]) - began
        rows = [
            {"problem": problem, "solver": solver, "cases": str(cases),
             "with a solution": str(solved), "wrong": str(wrong), "cpu": f"{cpu:.0f}"}
            for solver, (solved, wrong, cpu) in found.items()
        ]  # fmt: skip
        results.write("solvers_random", rows, "0", add=True)


def first_model() -> None:
    """Time the steps from nothing to a constrained model solved by SCIP, as the page has them."""
    page = (ROOT / "docs" / "formulations.md").read_text()
    (code,) = re.findall(r"```python\n((?:(?!```).)*solve\(\"scip\"\)\)\n)```", page, re.DOTALL)
    rows: list[results.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "environment" / "bin" / "python"
        copy = Path(folder) / "stagecut"
        (copy.parent / "copy.tar").write_bytes(_output("git", "archive", "HEAD", cwd=ROOT))
        copy.mkdir()
        _output("tar", "xf", "../copy.tar", cwd=copy)
        steps = {
            "environment": (sys.executable, "-m", "venv", str(python.parent.parent)),
            "pip install . pyscipopt": (str(python), "-m", "pip", "install", ".", "pyscipopt"),
            "five lines, first time": (str(python), "-c", code),
            "five lines, again": (str(python), "-c", code),
        }
        for step, words in steps.items():
            began, cpu = time.monotonic(), sum(os.times()[2:4])
            said = _output(*words, cwd=copy if "install" in step else Path(folder)).decode()
            rows.append(
                {"step": step, "seconds": f"{time.monotonic() - began:.1f}",
                 "cpu": f"{sum(os.times()[2:4]) - cpu:.1f}",
                 "said": said.strip() if "lines" in step else ""}
            )  # fmt: skip
    results.write("first_model", rows, "")


def _output(*words: str, cwd: Path) -> bytes:
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(words, cwd=cwd, env=alone, check=True, stdout=subprocess.PIPE).stdout


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("table", "random", "first-model"))
    parser.add_argument("--problems", nargs="+", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--cases", type=int, default=300)
    options = parser.parse_args()
    if options.what == "table":
        table(options.seconds)
    elif options.what == "first-model":
        first_model()
    else:
        random(options.problems, options.cases)


if __name__ == "__main__":
    main()
