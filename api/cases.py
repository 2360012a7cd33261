"""Cases of a comparison of methods: each in a process of its own.

A case that crashes, or is killed, is a row of the table like any other. Each finished case is
appended to a record beside the table, a line with a checksum, so that a comparison resumes where it
stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from ..instances import InputError
from ..instances.common.escape import csv
from ..instances.common.units import show_count
from ..instances.formats.files import load
from ..instances.formats.source import Record, read_bytes
from ..instances.formats.writing import write_whole
from ..solvers import method_of
from ..solvers.core.portfolio import executor_of
from ..solvers.core.processes import python_process
from .compare import Row, tabulate, why_no_plan

if TYPE_CHECKING:
    import pandas as pd


#: Ending of the record beside a table.
RECORD = ".jsonl"


def record_line(entry: tuple[str, Row]) -> str:
    """Return a case's key and row as a line."""
    key, row = entry
    return json.dumps({"key": key, "row": row, "check": _check(key, row)}) + "\n"


def _check(key: str, row: Row) -> str:
    """Return the checksum of a line."""
    stated = msgspec.to_builtins(msgspec.convert(row, RowRecord))  # 1 is 1.0 when read back
    text = json.dumps([key, stated], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RowRecord(Record, omit_defaults=True):
    """Row of the record: the outcome of a case, or the status and error of a crash."""

    workload: str
    method: str
    status: str
    limit: str | None = None
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    seconds: float | None = None
    verified: bool | None = None
    trace: list[list[float | None]] | None = None
    found_by: str | None = None
    error: str | None = None


class EntryRecord(Record):
    """A line of the record: a case's key and row, with their checksum."""

    key: str
    row: RowRecord
    check: str


def read_record(record: Path) -> tuple[dict[str, Row], int]:
    """Return the rows of a record by key, and the number of damaged or incomplete lines.

    InputError if the file is unreadable.
    """
    rows: dict[str, Row] = {}
    if not record.exists():
        return rows, 0
    *lines, rest = read_bytes(record).split(b"\n")
    damaged = int(rest != b"")
    for one in filter(None, lines):
        try:
            entry = msgspec.json.decode(one, type=EntryRecord)
            row = msgspec.to_builtins(entry.row)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            damaged += 1
            continue
        if entry.check == _check(entry.key, row):
            rows[entry.key] = row
        else:
            damaged += 1
    return rows, damaged


#: Exit code of a process that refuses bad input, and the beginning of the line that says why.
BAD_INPUT, ERROR = 2, "error: "
#: Seconds that a case may run past its time limit before its process is killed.
GRACE_S = 30.0


@dataclass(frozen=True)
class ComparisonCase:
    """One workload, one problem, one method, and the options of `stagecut solve`."""

    name: str  # what the table calls the workload; no two of a comparison share one
    workload: str  # a file, or the name of a shipped workload
    # of the workload, and of all that options and files say of problem and devices, so that a
    # changed file is solved again
    fingerprint: str
    problem: str  # what the table calls the problem
    method: str  # of `stagecut solve`
    options: tuple[str, ...]  # further options, as typed
    time_limit: float  # seconds

    @property
    def key(self) -> str:
        """Identifying text of the case."""
        return json.dumps(asdict(self), sort_keys=True)


def cases(
    workloads: Sequence[str],
    methods: Sequence[str],
    options: Sequence[str],
    time_limit: float,
    *,
    problem: str = "throughput",
    label: str = "",
    given: Mapping[str, str] = MappingProxyType({}),
) -> list[ComparisonCase]:
    """Return every workload with every method.

    The table calls the problem `label`, by default by its name. `given` has by workload what
    options and files say of problem and devices, so that a workload is solved again when that has
    changed. InputError if a workload cannot be loaded, a method does not exist, or nothing is to be
    compared.
    """
    if not workloads or not methods:
        raise InputError("compare: give at least one workload and one method")
    for method in methods:
        method_of(problem, method)  # raises if there is none
    prints = {}
    for name in workloads:
        under = hashlib.sha256(given[name].encode()).hexdigest() if name in given else ""
        prints[name] = f"{load(name).fingerprint} under {under}"
    called = unique_names(list(prints))
    words = ("--problem", problem) if "--problem" not in options else ()
    return [
        ComparisonCase(
            called[name],
            name,
            prints[name],
            label or problem,
            method,
            (*words, *options),
            time_limit,
        )
        for name in prints
        for method in methods
    ]


def unique_names(workloads: Sequence[str]) -> dict[str, str]:
    """Return a short name for each path: its stem, with as many folders as tell it from others.

    Examples
    --------
    >>> unique_names(["a/net.json", "b/net.json", "b/big.json"])["b/net.json"]
    'b/net'
    """
    names = {}
    for path in workloads:
        parts = Path(path).with_suffix("").parts
        for length in range(1, len(parts) + 1):
            tail = parts[-length:]
            alike = [p for p in workloads if Path(p).with_suffix("").parts[-length:] == tail]
            names[path] = "/".join(tail)
            if len(alike) == 1:
                break
    return names


def run_case(case: ComparisonCase) -> Row:
    """Run one case in a process of its own and return its row, also of a refusal or a crash."""
    command, environment = python_process("-m", "stagecut", "solve", case.workload, "--json")
    command += ["--method", case.method, "--time-limit", str(case.time_limit), *case.options]
    command += ["--set", "workers.count=1"]  # methods are compared, and cases run beside each other
    row: Row = {"workload": case.name, "method": case.method}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            timeout=case.time_limit + GRACE_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**row, "status": "killed", "error": f"ran {GRACE_S:g} s past its time limit"}
    if done.stdout.startswith("{"):
        answer = json.loads(done.stdout)
        kept = ("objective", "bound", "gap", "status", "limit", "seconds", "verified", "trace")
        row |= {key: answer[key] for key in kept} | {"found_by": answer["method"]}
        return row | why_no_plan(row["objective"] is not None, answer["reason"], answer["notes"])
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if done.returncode == BAD_INPUT and lines[-1].startswith(ERROR):
        return {**row, "status": "error", "error": lines[-1].removeprefix(ERROR)}
    return {**row, "status": "crashed", "error": f"exit code {done.returncode}: {lines[-1]}"}


def run_cases(
    todo: Sequence[ComparisonCase],
    output: Path,
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    on_row: Callable[[Row], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """Run the cases that are not in the record yet; write the table, a row each, and return it.

    The table is CSV, its record beside it with ``.jsonl`` added to its name. `jobs` cases run at a
    time on this machine, or all on the workers of the Dask scheduler at the address `scheduler`.
    `on_row` is called with every row, those of the record first; `on_notice` with what a user
    should know, such as damage of the record.
    """
    record = output.with_name(output.name + RECORD)
    known, damaged = read_record(record)
    if damaged:
        write_whole(record, "".join(map(record_line, known.items())))
        if on_notice is not None:
            text = show_count(damaged, "damaged line")
            on_notice(f"{record}: without {text}; their cases run again")
    rows = {case.key: known[case.key] for case in todo if case.key in known}

    def tell(case: ComparisonCase) -> None:
        if on_row is not None:
            on_row({"problem": case.problem, **rows[case.key]})

    for case in todo:
        if case.key in rows:
            tell(case)
    missing = [case for case in todo if case.key not in rows]
    with (
        record.open("a", encoding="utf-8") as file,
        closing(executor_of(jobs, scheduler)) as executor,
    ):
        for case, row in executor.unordered(run_case, missing):
            rows[case.key] = row
            file.write(record_line((case.key, row)))
            file.flush()
            os.fsync(file.fileno())
            tell(case)
    table = tabulate([{"problem": case.problem, **rows[case.key]} for case in todo])
    unfinished = output.with_name(output.name + ".part")
    table.drop(columns="trace").map(csv).to_csv(unfinished, index=False)
    unfinished.replace(output)
    return table
