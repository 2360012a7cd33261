"""Rows of measurements: a CSV file per table in `results/`, each row with its origin.

    python benchmarks/dp.py table | python benchmarks/results.py contiguous
    python benchmarks/latency.py … | python benchmarks/results.py latency --add --seed 1

The first form replaces the file by the Markdown table that a program prints; the second adds to it.
Columns are matched by position, and a table with another number of columns is refused. A script
took rows from before 25 November 2026 over from the tables of the page: their revision is the
commit that put the row there, and their machine and versions are those that the page gave.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
#: The columns of origin, which every file has after its own.
ORIGIN = ("seed", "revision", "date", "machine", "versions")
PACKAGES = {"numpy": "numpy", "numba": "numba", "Pyomo": "pyomo", "HiGHS": "highspy"}
PACKAGES |= {"torch": "torch", "transformers": "transformers"}
PACKAGES |= {"Gurobi": "gurobipy", "CPLEX": "cplex", "PySCIPOpt": "pyscipopt", "COPT": "coptpy"}
PACKAGES |= {"Xpress": "xpress"}
Row = Mapping[str, str]


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a table, by column."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(
    name: str, rows: Iterable[Row], seed: str, add: bool = False, keys: Sequence[str] = ()
) -> None:
    """Write rows, or add them, with the revision, machine and versions of this process.

    With `keys` rows that have the same values in these columns are replaced, and others stay. What
    was measured on another machine says so in its own columns of origin.
    """
    path = RESULTS / f"{name}.csv"
    here = origin(seed)
    stamped: list[Row] = [
        {k: v for k, v in row.items() if k not in ORIGIN} | {k: row.get(k, here[k]) for k in here}
        for row in rows
    ]
    if keys and path.exists():
        known = {tuple(row[key] for key in keys): row for row in (*read(name), *stamped)}
        stamped = list(known.values())
    elif add:
        stamped = [*read(name), *stamped]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(stamped[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(stamped)


def origin(seed: str) -> dict[str, str]:
    """Return the values of the columns of origin for what is measured now."""
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude", "*"],
        capture_output=True,
        text=True,
        check=True,
        cwd=RESULTS.parent,
    )
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = [f"Python {platform.python_version()}"]
    for name, package in PACKAGES.items():
        try:
            versions.append(f"{name} {version(package)}")
        except PackageNotFoundError:
            continue
    values = (
        seed,
        revision.stdout.strip(),
        date.today().isoformat(),
        f"{os.cpu_count()} cores, {_processor()}, {gib:.0f} GiB",
        "; ".join(versions),
    )
    return dict(zip(ORIGIN, values, strict=True))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def markdown(text: str) -> list[list[str]]:
    """Return the cells of each row of the Markdown tables in a text, headers left out."""
    lines = text.splitlines()
    rules = {n for n, line in enumerate(lines) if line.startswith("|") and set(line) <= set("|-: ")}
    return [
        [cell.strip() for cell in line.strip()[1:-1].split("|")]
        for n, line in enumerate(lines)
        if line.startswith("|") and n not in rules and n + 1 not in rules
    ]


def main() -> None:
    """Read a table from standard input and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sorted(path.stem for path in RESULTS.glob("*.csv")))
    parser.add_argument("--seed", default="0", help="of the runs; empty: nothing is drawn")
    parser.add_argument("--add", action="store_true", help="keep the rows that are there")
    args = parser.parse_args()
    columns = [name for name in read(args.name)[0] if name not in ORIGIN]
    found = markdown(sys.stdin.read())
    for cells in found:
        if len(cells) != len(columns):
            sys.exit(f"{args.name}.csv has {len(columns)} columns, {columns}; the row is {cells}")
    if not found:
        sys.exit("no Markdown table on standard input")
    write(
        args.name, [dict(zip(columns, cells, strict=True)) for cells in found], args.seed, args.add
    )


if __name__ == "__main__":
    main()
