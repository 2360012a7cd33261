"""What each number in `solvers/` is worth: what changes if it is halved, and if it is doubled.

    python benchmarks/constants.py mapping                       run what the table lacks
    python benchmarks/constants.py mapping --names SPLITS DECAY  of these constants alone
    python benchmarks/constants.py mapping --report              the table as Markdown

A constant is a number at the top level of a module, or in a record there; modules of kernels have
codes alone, as mapping's take constants as arguments. It is changed in the module's source before
anything is imported, so that copies and defaults have it too. Cells are those of `ablations.py`
named in `CELLS`; each run is a process of its own, and its limit counts CPU seconds.

A constant runs only in cells that read it, and a direction only until a cell shows an
effect: a gap or a time outside what the unchanged strategy has with three seeds, by more than
0.1 % of the objective, or a tenth and 0.2 s of the time. Numbers below 1 are doubled to 1 at most.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.machinery
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
COLUMNS = ("problem", "constant", "value", "change", "workload", "seed", "gap", "seconds",
           "revision", "machine")  # fmt: skip
CHANGES = ("halved", "doubled")
WHOLE = "unchanged"
SEEDS = 3

#: An effect is more than this: of the gap; of the time, as a factor and in seconds.
GAP, TIMES, SECONDS = 1e-3, 1.1, 0.2

#: Cells of `ablations.py` for each problem.
CELLS = {
    "mapping": (
        "random_blk_2:64 8 × 8 allr",
        "random_blk_1:64 8 × 8 p2p",
        "random_blk_2:64 16 × 4 p2p",
        "fattree:4 2 × 8 both, cheapest",
        "islands:4x8 4 × 8 both, busiest-link",
        "random_blk_1:16 4 × 4 both",
        "random_blk_1:64 4 × 16 both",
    ),
}


@dataclass(frozen=True)
class Constant:
    """A number in the source of a module: its name, where it stands, and its value."""

    file: Path
    name: str  # of a record's field: RECORD.field
    start: tuple[int, int]  # line, from 1, and byte in it
    end: tuple[int, int]
    value: float

    @property
    def module(self) -> str:
        """Its module, within `solvers`."""
        return ".".join(self.file.relative_to(ROOT / "solvers").with_suffix("").parts)

    @property
    def key(self) -> str:
        """Its name with its module."""
        return f"{self.module}:{self.name}"

    @property
    def top(self) -> str:
        """The name with its module, of the record that it is in."""
        return f"{self.module}:{re.split('[.[]', self.name)[0]}"

    def changed(self, change: str) -> float | None:
        """Return half of the value, or twice as much; None where that is no other number."""
        if isinstance(self.value, int):
            new: float = self.value // 2 if change == "halved" else 2 * self.value
        else:
            new = self.value / 2 if change == "halved" else 2 * self.value
            if 0.0 < self.value <= 1.0:
                new = min(new, 1.0)
        return new if new and new != self.value else None

    def source(self, value: float) -> bytes:
        """Return the module's source with another value."""
        lines = self.file.read_bytes().splitlines(keepends=True)
        (first, left), (last, right) = self.start, self.end
        before, after = lines[first - 1][:left], lines[last - 1][right:]
        lines[first - 1 : last] = [before + repr(value).encode() + after]
        return b"".join(lines)


def constants(problem: str) -> list[Constant]:
    """Return the numbers at the top level of a problem's solvers; kernels have codes alone."""
    files = sorted((ROOT / "solvers" / problem).rglob("*.py"))
    return [
        each
        for file in files
        if "kernel" not in file.name
        for each in in_source(file, file.read_bytes())
    ]


def in_source(file: Path, source: bytes) -> list[Constant]:
    """Return the numbers at the top level of a module."""
    found = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target = statement.target
        else:
            continue
        assert statement.value is not None
        for name, value in _numbers(ast.unparse(target), target, statement.value):
            assert value.end_lineno is not None
            assert value.end_col_offset is not None
            start = (value.lineno, value.col_offset)
            end = (value.end_lineno, value.end_col_offset)
            found.append(Constant(file, name, start, end, eval(ast.unparse(value))))
    return found


def _numbers(name: str, target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the expressions of numbers in an assignment, with their names."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _numbers(ast.unparse(one), one, part)
    elif isinstance(value, ast.Call):
        for keyword in value.keywords:
            yield from _numbers(f"{name}.{keyword.arg}", target, keyword.value)
    elif isinstance(value, ast.Tuple):
        for k, part in enumerate(value.elts):
            yield from _numbers(f"{name}[{k}]", target, part)
    elif all(
        isinstance(x, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
        or (isinstance(x, ast.Constant) and type(x.value) in (int, float))
        for x in ast.walk(value)
    ):
        yield name, value


def reads(of: list[Constant]) -> dict[tuple[str, int], set[str]]:
    """Return which constants, as `file:name`, are read at a line inside a function."""
    homes: dict[str, dict[str, str]] = {}
    for constant in of:
        homes.setdefault(str(constant.file), {})[constant.top.split(":")[1]] = constant.top
    lines: dict[tuple[str, int], set[str]] = {}
    for file in sorted((ROOT / "solvers").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        known = dict(homes.get(str(file), {}))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                home = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                there = homes.get(f"{home}.py", {})
                known |= {x.asname or x.name: there[x.name] for x in node.names if x.name in there}
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Name) and node.id in known:
                        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                            lines.setdefault((str(file), line), set()).add(known[node.id])
    return lines


def reached(solve: Callable[[], dict], of: list[Constant]) -> list[str]:
    """Return the constants that a solve reads in functions that Python runs itself."""
    lines = reads(of)
    found: set[str] = set()

    @cache
    def of_code(code: CodeType) -> dict[int, set[str]]:
        if "solvers" not in code.co_filename:
            return {}
        file = str(Path(code.co_filename).resolve())
        numbers = {number for _, _, number in code.co_lines() if number is not None}
        return {number: lines[file, number] for number in numbers if (file, number) in lines}

    def line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            found.update(of_code(frame.f_code).get(frame.f_lineno, ()))
        return line

    def call(frame: FrameType, _event: str, _: object) -> Any:
        return line if of_code(frame.f_code) else None

    threading.settrace(call)
    solve()
    return sorted(found)


@contextmanager
def changed_source(constant: Constant | None, change: str) -> Iterator[None]:
    """Import the package anew in this process, with a constant changed in its module's source."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("stagecut", "ablate", "ablations"):
            del sys.modules[name]
    original = importlib.machinery.SourceFileLoader.get_code
    value = None if constant is None else constant.changed(change)

    def get_code(loader: Any, name: str) -> Any:
        if constant is None or value is None or Path(loader.path).resolve() != constant.file:
            return original(loader, name)
        return loader.source_to_code(constant.source(value), loader.path)

    with patch.object(importlib.machinery.SourceFileLoader, "get_code", get_code):
        if constant is not None:
            module = import_module("stagecut.solvers." + constant.module)
            if eval(constant.name, vars(module)) != value:
                raise RuntimeError(f"{constant.key} is not {value}")
        yield


def solve_changed(
    problem: str,
    constant: Constant | None,
    change: str,
    runs: list[tuple[str, int]],
    seconds: float,
    shows: Callable[[dict], bool],
) -> list[dict]:
    """Solve cells with seeds, each in a process, until one shows an effect; return the rows."""
    rows = []
    with changed_source(constant, change):
        from ablate import PROBLEMS, in_a_process, solve_cell

        cells, _ = PROBLEMS[problem]()
        for cell, seed in runs:
            row = in_a_process(solve_cell, cells[cell], "", {}, seed, seconds)
            rows.append({"workload": cell, "seed": seed, **row})
            if shows(rows[-1]):
                break
    return rows


def find_reads(problem: str, cell: str, seconds: float) -> list[str]:
    """Return the constants that the solve of a cell reads in functions that Python runs itself."""
    with changed_source(None, ""):
        from ablate import PROBLEMS, solve_cell

        cells, _ = PROBLEMS[problem]()
        return reached(lambda: solve_cell(cells[cell], "", {}, 0, seconds), constants(problem))


def effect(row: dict, unchanged: pd.DataFrame) -> bool:
    """Return whether gap or time lie outside those of the unchanged strategy."""
    cell = unchanged[unchanged["workload"].eq(row["workload"])]
    gaps, times = cell["gap"], cell["seconds"]
    same_gap = gaps.min() - GAP <= row["gap"] <= gaps.max() + GAP
    least, most = times.min() / TIMES - SECONDS, times.max() * TIMES + SECONDS
    return not (same_gap and least <= row["seconds"] <= most)


def run(args: argparse.Namespace, table: Path) -> None:
    """Run what the table lacks."""
    import ablate

    names = CELLS[args.problem]
    known = pd.read_csv(table) if table.exists() else pd.DataFrame(columns=list(COLUMNS))
    known = known[known["problem"].eq(args.problem)]
    origin = {"revision": ablate.revision(), "machine": ablate.machine()}
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        if file.tell() == 0:
            writer.writeheader()

        def write(rows: list[dict], constant: str, value: Any, change: str) -> None:
            for row in rows:
                row |= {"problem": args.problem, "constant": constant, "change": change}
                row |= {"value": value, **origin}
                writer.writerow(row)
                print(*(row[name] for name in COLUMNS[1:8]), sep=", ", flush=True)
            file.flush()

        def solved(constant: Constant | None, change: str, runs: list, shows: Any) -> list[dict]:
            return ablate.in_a_process(
                solve_changed, args.problem, constant, change, runs, args.seconds, shows
            )

        unchanged = known[known["change"].eq("none")]
        done = set(zip(unchanged["workload"], unchanged["seed"], strict=True))
        runs = [(name, seed) for name in names for seed in range(SEEDS) if (name, seed) not in done]
        if runs:
            rows = solved(None, "", runs, lambda _row: False)
            write(rows, WHOLE, "", "none")
            unchanged = pd.concat([unchanged, pd.DataFrame(rows)])
        reads = {
            name: ablate.in_a_process(find_reads, args.problem, name, args.seconds)
            for name in names
        }
        for constant in constants(args.problem):
            where = [name for name in names if constant.top in reads[name]]
            of = known[known["constant"].eq(constant.key)]
            if not where and of.empty:
                write([dict.fromkeys(COLUMNS)], constant.key, constant.value, "not read")
            asked = not args.names or constant.name in args.names
            for change in CHANGES if asked else ():
                if constant.changed(change) is None or of["change"].eq(change).any():
                    continue
                runs = [(name, seed) for seed in range(args.seeds) for name in where]
                rows = (
                    solved(constant, change, runs, lambda row: effect(row, unchanged))
                    if runs
                    else []
                )
                write(rows, constant.key, constant.value, change)


def verdicts(table: Path, problem: str) -> pd.DataFrame:
    """Return a row per constant: its value, and what halving and doubling change."""
    found = pd.read_csv(table)
    found = found[found["problem"].eq(problem)]
    unchanged = found[found["change"].eq("none")]
    rows = []
    for name, of in found[~found["change"].eq("none")].groupby("constant", sort=False):
        told = {}
        for change, runs in of.groupby("change"):
            shown = [
                row
                for row in runs.to_dict("records")
                if change in CHANGES and effect(row, unchanged)
            ]
            told[change] = "; ".join(_shown(row, unchanged) for row in shown) or "none"
        rows.append({"constant": name, "value": of["value"].iloc[0], **told})
    return pd.DataFrame(rows)


def _shown(row: dict, unchanged: pd.DataFrame) -> str:
    cell = unchanged[unchanged["workload"].eq(row["workload"])]
    gap, time = cell["gap"].median(), cell["seconds"].median()
    values = f"{100 * row['gap']:.2f} % ({100 * gap:.2f} %), {row['seconds']:.1f} s ({time:.1f} s)"
    return f"{row['workload']}: {values}"


def report(table: Path, problem: str) -> str:
    """Return the table as Markdown."""
    lines = ["| constant | value | halved | doubled |", "|---|---|---|---|"]
    for row in verdicts(table, problem).fillna("").to_dict("records"):
        if row.get("not read"):
            lines.append(f"| {row['constant']} | {row['value']} | not read | not read |")
        else:
            told = " | ".join(row.get(change) or "not tried" for change in CHANGES)
            lines.append(f"| {row['constant']} | {row['value']} | {told} |")
    return "\n".join(lines)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problem", choices=CELLS)
    parser.add_argument("--csv", type=Path, default=RESULTS / "ablation-constants.csv")
    parser.add_argument("--seconds", type=float, default=4.0, help="CPU seconds of a run")
    parser.add_argument("--seeds", type=int, default=1, help="of a constant's runs")
    parser.add_argument("--names", nargs="*", help="default: every constant")
    parser.add_argument("--report", action="store_true", help="print the table")
    args = parser.parse_args()
    if args.report:
        print(report(args.csv, args.problem))
    else:
        run(args, args.csv)


if __name__ == "__main__":
    main()
