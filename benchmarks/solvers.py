"""Every installed solver of integer programs on weak and strong forms, and on random small cases.

``table`` solves six instances in two forms each and writes a row per solver and form. ``random``
solves random cases, each with a random constraint, and counts where the optimum of brute force was
found. Rows go to a CSV file. Needs `tests/support` on the path.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from brute_sharding import least_cost, random_problem, random_program
from constrained_cases import EXACT, MAKERS, check_against_brute_force
from pyomo.environ import Var
from training_cases import best_objective, random_training_case

import stagecut
from stagecut import InputError, Latency, Limits, StagecutError, Throughput
from stagecut.instances import Problem, Workload
from stagecut.solvers.core.other_solvers import SOLVERS, check_solver

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


def table(path: Path, seconds: float) -> None:
    """Solve all instances in both forms."""
    fields = ("problem", "instance", "form", "solver", "columns", "seconds", "cpu", "gap", "end")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(fields)
        for what, workload, cluster, problem in instances():
            for form in FORMS[problem.name]:
                for solver in installed():
                    f = stagecut.formulation(workload, cluster, problem, form)
                    began, cpu = time.monotonic(), time.process_time()
                    result = f.solve(solver, limits=Limits(seconds=seconds, gap=1e-6))
                    took = time.monotonic() - began
                    failed = [note for note in result.notes if " failed, and" in note]
                    end = str(result.status) if not failed else "licence"
                    gap = "" if result.gap is None else f"{result.gap:.4%}"
                    size = sum(1 for _ in f.model.component_data_objects(Var))
                    rows.writerow(
                        (problem.name, what, form, solver, size, f"{took:.2f}",
                         f"{time.process_time() - cpu:.2f}", gap, end)
                    )  # fmt: skip
                    file.flush()


def compared(problem: str, seed: int, solver: str) -> bool:
    """Compare a case with brute force, under a random constraint where that knows one.

    False if nothing keeps all rules.
    """
    if problem in MAKERS:
        return check_against_brute_force(problem, seed, solver)
    case: tuple[Workload, stagecut.Cluster | None, Problem]
    if problem == "training":
        case = random_training_case(seed, max_nodes=4, max_devices=3)
        best: float | None = best_objective(*case)
    else:
        rng = np.random.default_rng(seed)
        workload, asked = random_program(rng, most=5), random_problem(rng)
        case, best = (workload, None, asked), least_cost(workload, asked)
    try:
        found = stagecut.formulation(*case).solve(solver, limits=EXACT).objective
    except stagecut.InfeasibleError:
        found = None
    known = best is not None and math.isfinite(best)
    assert known == (found is not None), (found, best)
    assert not known or math.isclose(found, best, rel_tol=1e-6, abs_tol=1e-12), (found, best)
    return known


#: Cases of each problem, if not fewer are asked for: brute force takes long for some.
CASES = {"throughput": 300, "latency": 300, "iteration": 40, "training": 30, "sharding": 40}


def random(path: Path, count: int) -> None:
    """Compare random cases with brute force."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("problem", "solver", "cases", "with a solution", "wrong", "cpu"))
        for problem, usual in CASES.items():
            for solver in installed():
                cpu, found, wrong, cases = time.process_time(), 0, 0, min(count, usual)
                for seed in range(cases):
                    try:
                        found += compared(problem, seed, solver)
                    except (AssertionError, StagecutError) as error:
                        wrong += 1
                        print(f"{problem} {solver} {seed}: {str(error)[:300]}", flush=True)
                spent = time.process_time() - cpu
                rows.writerow((problem, solver, cases, found, wrong, f"{spent:.0f}"))
                file.flush()


def main() -> None:
    """Run one of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("table", "random"))
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--cases", type=int, default=300)
    options = parser.parse_args()
    if options.what == "table":
        table(options.output, options.seconds)
    else:
        random(options.output, options.cases)


if __name__ == "__main__":
    main()
