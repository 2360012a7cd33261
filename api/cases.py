"""Cases of a comparison of methods: each in a process of its own.

A case that crashes, or is killed, is a row of the table like any other. Each finished case is
appended to a record beside the table, a line with a checksum, so that a comparison resumes where it
stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances.common.escape import csv
from ..instances.common.units import show_count
from ..instances.formats.source import read_bytes
from ..instances.formats.writing import write_whole
from ..solvers.core.portfolio import executor_of
from ..solvers.core.processes import python_process
from .compare import Case, Row, row_of, tabulate

if TYPE_CHECKING:
    import pandas as pd


#: Ending of the record beside a table.
RECORD = ".jsonl"


def record_lines(rows: Mapping[str, Row]) -> bytes:
    """Return rows of cases, by their keys, as lines of a record."""
    texts = [json.dumps(entry).encode() for entry in rows.items()]
    return b"".join(b"%s %s\n" % (_check(text), text) for text in texts)


def _check(text: bytes) -> bytes:
    """Return the checksum of a line."""
    return hashlib.sha256(text).hexdigest()[:16].encode()


def read_record(record: Path) -> tuple[dict[str, Row], int]:
    """Return the rows of a record by key, and the number of damaged or incomplete lines.

    InputError if the file is unreadable.
    """
    if not record.exists():
        return {}, 0
    *lines, rest = read_bytes(record).split(b"\n")
    parts = [line.partition(b" ") for line in lines if line]
    whole = [text for check, _, text in parts if check == _check(text)]
    rows: dict[str, Row] = dict(map(json.loads, whole))
    return rows, len(parts) - len(whole) + (rest != b"")


#: Seconds that a case may run past its time limit before its process is killed.
GRACE_S = 30.0

#: Program of a case's process, whose time limit counts from its start.
_PROGRAM = f"import time; begun = time.monotonic(); from {__name__} import main; main(begun)"


def run_case(case: Case) -> Row:
    """Run one case in a process of its own and return its row, also of a crash."""
    command, environment = python_process("-c", _PROGRAM)
    seconds = case.limits.seconds
    try:
        done = subprocess.run(
            command,
            input=pickle.dumps(case),
            capture_output=True,
            env=environment,
            timeout=None if seconds is None else seconds + GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"ran {GRACE_S:g} s past its time limit"
        return {**case.names, "status": "killed", "error": why}
    if done.returncode == 0:
        row: Row = json.loads(done.stdout)
        return row
    (*_, last) = done.stderr.decode(errors="replace").strip().splitlines() or [""]
    why = f"exit code {done.returncode}: {last}"
    return {**case.names, "status": "crashed", "error": why}


def main(begun: float) -> None:
    """Run the case on standard input in this process, which began at `begun`; print its row."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no part of the row
    case: Case = pickle.load(sys.stdin.buffer)
    row = row_of(replace(case, limits=replace(case.limits, since=begun)))
    row.pop("plan", None)
    unknown = [name for name, value in row.items() if value in (math.inf, -math.inf)]
    answer.write(json.dumps(row | dict.fromkeys(unknown)).encode())
    answer.flush()
    os._exit(0)  # does not wait for threads of HiGHS that ignore requests


def run_cases(
    todo: Sequence[Case],
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
        write_whole(record, record_lines(known))
        if on_notice is not None:
            text = show_count(damaged, "damaged line")
            on_notice(f"{record}: without {text}; their cases run again")
    keys = [case.key for case in todo]
    rows = {key: known[key] for key in keys if key in known}
    if on_row is not None:
        for row in rows.values():
            on_row(row)
    missing = [case for case, key in zip(todo, keys, strict=True) if key not in rows]
    with record.open("ab") as file, closing(executor_of(jobs, scheduler)) as executor:
        for case, row in executor.unordered(run_case, missing):
            rows[case.key] = row
            file.write(record_lines({case.key: row}))
            file.flush()
            os.fsync(file.fileno())
            if on_row is not None:
                on_row(row)
    table = tabulate([rows[key] for key in keys])
    unfinished = output.with_name(output.name + ".part")
    table.drop(columns="trace").map(csv).to_csv(unfinished, index=False)
    unfinished.replace(output)
    return table
