"""Record files of comparisons: a line for each finished case, with a checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec

from ..instances.formats.source import Record, read_bytes
from .compare import Row

#: Endings of the record beside a table, and of its damaged lines.
RECORD, DAMAGED = ".jsonl", ".damaged"


def line(entry: tuple[str, Row]) -> str:
    """Return a case's key and row as a line."""
    key, row = entry
    return json.dumps({"key": key, "row": row, "check": _check(key, row)}) + "\n"


def _check(key: str, row: Row) -> str:
    """Return the checksum of a line."""
    stated = msgspec.to_builtins(msgspec.convert(row, RowRecord))  # 1 is 1.0 when read back
    text = json.dumps([key, stated], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cut_off(record: Path) -> bool:
    """Whether the last line lacks its newline."""
    return record.exists() and record.read_bytes()[-1:] not in (b"", b"\n")


class RowRecord(Record, omit_defaults=True):
    """Row of the record: the outcome of a case; of a crash the status and error alone."""

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
    """A line of the record; older ones have no `check`."""

    key: str
    row: RowRecord
    check: str | None = None


def read_record(record: Path) -> tuple[dict[str, Row], list[bytes]]:
    """Return the rows of a record by key, and the lines that are damaged.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    lines = read_bytes(record).split(b"\n") if record.exists() else []
    rows: dict[str, Row] = {}
    damaged = []
    for line in filter(None, lines):
        try:
            entry = msgspec.json.decode(line, type=EntryRecord)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            damaged.append(line)
            continue
        row = msgspec.to_builtins(entry.row)
        if entry.check in (None, _check(entry.key, row)):
            rows[entry.key] = row
        else:
            damaged.append(line)
    return rows, damaged
