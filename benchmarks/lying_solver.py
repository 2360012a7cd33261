"""Every driver of integer programs with a solver that lies, and what the result says.

    PYTHONPATH=.dev python benchmarks/lying_solver.py

A cell has the status, and the bound over the objective of the plan that the honest solver leads to.
In brackets, *noted* means that a note names the lie, *solver's word* that the bound's origin is the
solver alone, and *wrong* that the bound is above that objective.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from lies import DRIVERS, LIES, asked

from stagecut import Result

#: By how much a bound may be above an objective, relatively: rounding.
ROUNDING = 1e-6


def cell(result: Result, objective: float) -> str:
    """Return what a result says, in a few words."""
    remarks = []
    if any("a defect" in note or "failed" in note for note in result.notes):
        remarks.append("noted")
    if result.bound_origin.endswith("(HiGHS)"):
        remarks.append("solver's word")
    if result.bound > objective * (1 + ROUNDING):
        remarks.append("wrong")
    said = f"{result.status} {result.bound / objective:.4g}"
    return said + (f" ({', '.join(remarks)})" if remarks else "")


def main() -> None:
    """Print the table."""
    names = ["honest", *(lie.__name__.replace("_", " ") for lie in LIES)]
    print(f"| driver | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for driver in DRIVERS:
        truth = asked(driver)
        assert truth.objective is not None
        cells = [cell(truth, truth.objective)]
        cells += [cell(asked(driver, lie), truth.objective) for lie in LIES]
        print(f"| {driver} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
