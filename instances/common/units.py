"""Quantities: units, limits, and texts of times, sizes, rates and percentages."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from .errors import InputError, quote

NodeId = int | str

#: Seconds per unit of time; a file that names no unit cannot be priced over links in bytes/s.
TIME_UNITS: Mapping[str, float] = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9})
UNSPECIFIED = "unspecified"

#: Largest time, size or rate that files and callers may give: products of three, and sums over as
#: many as fit into memory, are still finite. The smallest rate and factor is 1 / LARGEST.
LARGEST = 1e100
SMALLEST = 1 / LARGEST

#: Largest number of microbatches, degrees, calls and the like: products of two fit into 64 bits.
MOST_COUNT = 10**9

#: Generator, in a workload's provenance, of those made from PyTorch models.
FROM_PYTORCH = "stagecut.instances.pytorch"
#: Way of tracing, in a workload's provenance, whose graph is valid for the traced numbers alone.
ON_NUMBERS = "operators on these numbers"
#: Advice on how to cut a model whose outermost code depends on the numbers in its tensors.
TO_RUN = (
    "move the code at fault into a module of its own, which then runs as it is; in a class that is "
    "not yours, plan a module around its inner model and leave the rest, such as the loss, to "
    "another module or to the training loop"
)
#: Module name of the outermost module's own operators in workloads made from models.
ROOT_MODULE = "model"


_NUMBER = r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
_SIZE = re.compile(rf"{_NUMBER}\s*(?:(?:([kKmMgGtTpP])([iI]?))?(B|bit|b)(/s|ps)?)?")
_TIME = re.compile(rf"{_NUMBER}\s*(s|ms|us|µs|ns|)")


def parse_bytes(text: str, option: str) -> float:
    """Return the bytes that a text such as ``16GiB`` states; InputError if it states none.

    Examples
    --------
    >>> parse_bytes("16GiB", "--memory"), parse_bytes("1e9", "--memory")
    (17179869184.0, 1000000000.0)
    """
    size = _bytes_of(text, per_second=False)
    if size is None:
        raise InputError(f"{option}: {quote(text)}; write a size such as 16GiB, 80GB or 1e9")
    return size


def parse_rate(text: str, option: str) -> float:
    """Return the bytes per second of a text such as ``50GB/s``; InputError if it states no rate.

    In ``400Gb/s`` a small b behind a capital letter stands for bits; a number alone is of bytes.

    Examples
    --------
    >>> parse_rate("400Gb/s", "--bandwidth"), parse_rate("25e9", "--bandwidth")
    (50000000000.0, 25000000000.0)
    """
    rate = _bytes_of(text, per_second=True)
    if not rate:
        raise InputError(f"{option}: {quote(text)}; write a rate such as 400Gb/s or 50GB/s")
    return rate


def _bytes_of(text: str, *, per_second: bool) -> float | None:
    """Return the bytes, or bytes per second, of a number with its unit; None if it is no such."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        return None
    number, prefix, binary, unit, rate = match.groups(default="")
    if unit and bool(rate) != per_second:
        return None
    size = float(number) * float(1024 if binary else 1000) ** " kmgtp".index(prefix.lower() or " ")
    bits = unit == "bit" or (unit == "b" and rate and prefix == prefix.upper())
    return size / (8 if bits else 1) if size <= LARGEST else None


def parse_seconds(text: str, option: str) -> float:
    """Return the seconds that a text such as ``5us`` states; InputError if it states none."""
    match = _TIME.fullmatch(text.strip())
    if not match or float(match[1]) > LARGEST:
        raise InputError(f"{option}: {quote(text)}; write a time such as 5us")
    return float(match[1]) * TIME_UNITS[match[2].replace("µ", "u") or "s"]


def show_bytes(size: float) -> str:
    """Return a size as text, with a binary prefix.

    Examples
    --------
    >>> show_bytes(3 * 2**30)
    '3.00 GiB'
    """
    if math.isinf(size):
        return "no limit"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def show_count(count: int, noun: str) -> str:
    """Return a count with its noun, given in the singular.

    Examples
    --------
    >>> show_count(1, "microbatch"), show_count(2048, "microbatch"), show_count(0, "device")
    ('1 microbatch', '2,048 microbatches', '0 devices')
    """
    ending = "" if count == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count:,} {noun}{ending}"


def show_time(value: float, unit: str) -> str:
    """Return a time as text, with its unit where the workload names one; infinity is unknown."""
    if math.isinf(value):
        return "unknown"
    return f"{value:.6g}" + ("" if unit == "unspecified" else f" {unit}")


def show_percent(part: float, digits: int = 1, *, signed: bool = False) -> str:
    """Return a fraction as text in per cent; one that is not finite is unknown.

    Examples
    --------
    >>> show_percent(0.125), show_percent(-0.674, signed=True), show_percent(1e-9, signed=True)
    ('12.5 %', '−67.4 %', '±0 %')
    """
    if not math.isfinite(part):
        return "unknown"
    text = f"{abs(100 * part):.{digits}f}"
    if not float(text):
        return "±0 %" if signed else f"{text} %"
    sign = "−" if part < 0 else "+" if signed else ""
    return f"{sign}{text} %"


def show_gap(gap: float) -> str:
    """Return a gap as text in per cent."""
    return show_percent(gap, 3)


def show_proved(gap: float, status: str) -> str:
    """Return a gap as text, with its meaning for the plan."""
    proved = "optimal" if status == "optimal" else "no plan is better by more"
    return f"{show_gap(gap)} ({proved})"


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return rows as lines of text with aligned columns: the first `left` flush left, others right.

    Examples
    --------
    >>> print(text_table(["device", "ms"], [["a", "1.5"], ["bcd", "12"]]))
    device   ms
    a       1.5
    bcd      12
    """
    lines = [titles, *rows]
    widths = [max(len(line[c]) for line in lines) for c in range(len(titles))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if c < left else cell.rjust(width)
            for c, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def divisors(number: int, most: int = MOST_COUNT) -> list[int]:
    """Return the divisors of a positive number, increasing, up to `most`."""
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def check_count(option: str, value: object, most: int = MOST_COUNT) -> None:
    """Raise InputError unless `value` is a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{option}: {quote(value)}; it must be a whole number of at least 1")
    if value > most:
        raise InputError(f"{option}: {quote(value)}; it must be at most {most}")


def check_counts(option: str, values: tuple[int, ...] | None) -> None:
    """Raise InputError unless `values` is None or has at least one count, and only counts."""
    if not isinstance(values, tuple | list | None):
        raise InputError(f"{option}: {quote(values)}; it must be a list of whole numbers")
    for value in values or ():
        check_count(option, value)
    if values is not None and not values:
        raise InputError(f"{option}: empty; allow at least one, or give None for all")
