"""Checks of numbers that problems take as options."""

from __future__ import annotations

from .errors import InputError, quote
from .units import MOST_COUNT


def check_count(option: str, value: object, most: int = MOST_COUNT) -> None:
    """Raise InputError unless `value` is a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{option}: {quote(value)}; it must be a whole number of at least 1")
    if value > most:
        raise InputError(f"{option}: {quote(value)}; it must be at most {most}")


def check_counts(option: str, values: tuple[int, ...] | None) -> None:
    """Raise InputError if one of `values` is no count, or there is none; None stands for all."""
    for value in values or ():
        check_count(option, value)
    if values == ():
        raise InputError(f"{option}: empty; allow at least one, or give None for all")
