"""Output that all commands share: sizes, numbers, JSON, exit codes, progress."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...instances import InputError, Status
from ...instances.common.escape import plain
from ...instances.common.kernel import compiling
from ...instances.common.units import parse_bytes as parse_bytes
from ...instances.common.units import parse_rate as parse_rate
from ...instances.common.units import show_bytes as show_bytes
from ...instances.common.units import show_count as show_count
from ...instances.common.units import show_gap as show_gap
from ...instances.common.units import show_percent as show_percent
from ...instances.common.units import show_time as show_time
from ...instances.formats.writing import PAGES, PICTURES, check_target

if TYPE_CHECKING:
    from ...solvers import Progress


class _Plain(Console):
    """Console that prints names from files without markup, emoji or terminal escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.width < 1:  # COLUMNS=0
            self.width = 80

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a table is wide enough for its numbers even on a narrower terminal."""
        for table in objects:
            if isinstance(table, Table) and not fits(table, self.width):
                options["crop"] = False
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as it is printed, also in tables."""
        return super().render_str(plain(text), **options)

    def print_line(self, text: str, style: str = "") -> None:
        """Print a text without highlighting, and without wrapping its lines."""
        self.print(text, style=style, highlight=False, soft_wrap=True)

    def print_wrapped(self, text: str, style: str = "") -> None:
        """Print a text without highlighting, wrapped between words."""
        self.print(text, style=style, highlight=False)


OUT = _Plain(emoji=False, markup=False)
ERR = _Plain(stderr=True, emoji=False, markup=False)

BAD_INPUT, INFEASIBLE, NO_PLAN, UNCHECKED, INTERRUPTED = 2, 3, 4, 5, 130


def check_outputs(
    *files: Path | None,
    pictures: Sequence[Path | None] = (),
    page: Path | None = None,
    inputs: Sequence[str | Path | None] = (),
) -> None:
    """Refuse, before the work, outputs that could not be written; None stands for no output.

    No output may be one of the inputs, no two outputs the same file, and only `pictures` and a
    `page` may have the name of a picture.
    """
    for path in files:
        if path is not None:
            check_target(path)
            if path.suffix.lower() in PICTURES:
                raise InputError(
                    f"{path}: this file is no picture; give it another ending, and see --help for "
                    "the options that draw"
                )
    for path in pictures:
        if path is not None:
            check_target(path, PICTURES)
    if page is not None:
        check_target(page, (*PICTURES, *PAGES))
    read = {_identity(Path(given)): given for given in inputs if given is not None}
    seen: set[object] = set()
    for path in (*files, *pictures, page):
        if path is None or (path.exists() and not path.is_file()):
            continue  # a pipe or terminal takes everything
        if _identity(path) in read:
            raise InputError(f"{path}: it is an input, and would be lost; write to another file")
        if _identity(path) in seen:
            raise InputError(f"{path}: two outputs go there; give each a file of its own")
        seen.add(_identity(path))


def check_plan_file(path: Path | None) -> None:
    """Refuse, before the work, to write a plan into a file with the name of a table."""
    if path is not None and path.suffix.lower() == ".csv":
        raise InputError(f"{path}: a plan is no table; write it to a file that ends in .json")


def check_table_file(path: Path | None) -> None:
    """Refuse, before the work, to write a table as CSV into a file with another name."""
    if path is not None and path.suffix.lower() == ".json":
        raise InputError(f"{path}: a table is written as CSV, to a file that ends in .csv")


def _identity(path: Path) -> object:
    """Return the identity of a file, the same for all of its names."""
    try:
        there = path.stat()
        return there.st_dev, there.st_ino
    except (OSError, ValueError):
        return os.path.realpath(path) if "\0" not in str(path) else str(path)


def file_of(reference: str) -> str | None:
    """Return the file that a reference such as ``model.py:make`` or ``nvidia:FILE`` names."""
    before, colon, behind = reference.partition("@")[0].rpartition(":")
    if not colon:
        return behind
    return behind if before == "nvidia" else before


def fits(table: Table, room: int) -> bool:
    """Narrow a table to a width without cutting words; return whether it fits."""
    cells = [[str(cell) for cell in (column.header, *column.cells)] for column in table.columns]
    widths = [max(map(cell_len, own)) for own in cells]
    words = [
        width if column.no_wrap else max(map(cell_len, " ".join(own).split()), default=0)
        for column, own, width in zip(table.columns, cells, widths, strict=True)
    ]
    for k, column in enumerate(table.columns):
        widths[k] = max(words[k], min(widths[k], column.max_width or widths[k]))
    border = 3 * len(words) + 1
    if sum(words) + border > room:
        table.padding, border = 0, len(words) + 1
    if sum(widths) + border <= room:
        return True
    while sum(widths) + border > room and widths != words:
        wide = [k for k in range(len(words)) if widths[k] > words[k]]
        widths[max(wide, key=widths.__getitem__)] -= 1
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width
    table.width = sum(widths) + border
    return table.width <= room


def new_table(title: str, first: str, titles: Iterable[str]) -> Table:
    """Return an empty table: a column of names, then columns of numbers."""
    table = Table(title=title)
    table.add_column(first, no_wrap=True)
    for name in titles:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def fold_titles(table: Table) -> None:
    """Break the titles of columns of numbers into lines."""
    for column in table.columns[1:]:
        column.no_wrap = False
        words = [*map(str, column.cells), *str(column.header).split()]
        column.max_width = max(map(cell_len, words))


def print_json(value: dict[str, Any]) -> None:
    """Print exactly one JSON object on standard output; infinities become null."""
    sys.stdout.write(json.dumps(_finite(value), allow_nan=False) + "\n")
    sys.stdout.flush()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def refuse(given: Mapping[str, object], why: str) -> None:
    """Raise InputError for the first of some options that is given: not None, False or ``auto``."""
    for option, value in given.items():
        if not (value is None or value is False or value == "auto"):
            raise InputError(f"{option}: {why}; leave it out")


def tell_written(*paths: Path | None) -> None:
    """Print the files that were written; None stands for no file."""
    for path in paths:
        if path is not None:
            OUT.print_line(f"written: {path}")


def need(package: str, extra: str) -> None:
    """Raise InputError unless a package of one of our extras is installed."""
    if find_spec(package) is None:
        raise InputError(
            f"{package} is not installed; in Stagecut's folder: "
            f"pip install -c constraints.txt '.[{extra}]'"
        )


def end(code: int) -> None:
    """Leave with an exit code."""
    if code:
        raise typer.Exit(code)


def end_with(status: Status) -> None:
    """Leave with the exit code of a search's status."""
    end({Status.INFEASIBLE: INFEASIBLE, Status.NO_SOLUTION: NO_PLAN}.get(status, 0))


class _ProgressLine:
    """Progress line: the latest message, with a clock that runs on between messages."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.news: Progress | None = None
        self.updated = time.monotonic()

    def __call__(self, news: Progress) -> None:
        self.news, self.updated = news, time.monotonic()

    def __rich__(self) -> Text:
        if compiling():
            return Text("compiling, once per machine …", style="dim")
        if self.news is None:
            return Text("loading …", style="dim")
        point = self.news.point
        since = time.monotonic() - self.updated
        best = show_time(point.objective, self.unit) if math.isfinite(point.objective) else "none"
        bound = f"{point.bound:.6g}" if math.isfinite(point.bound) else "none"
        left = self.news.seconds_left - since
        text = (
            f"{self.news.method}: best {best}, bound {bound}, gap {show_gap(point.gap)}, "
            f"{point.seconds + since:.0f} s"
        )
        return Text(text + (f", {max(0.0, left):.0f} s left" if math.isfinite(left) else ""))


@contextmanager
def progress(unit: str) -> Iterator[_ProgressLine]:
    """Show progress on standard error while the body runs; quiet if it is not a terminal."""
    line = _ProgressLine(unit)
    if not ERR.is_terminal or threading.current_thread() is not threading.main_thread():
        yield line
        return
    with Live(line, console=ERR, refresh_per_second=4, transient=True):
        yield line
