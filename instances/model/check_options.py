"""Checks of options that several problems share."""

from __future__ import annotations

from .errors import InputError, quote
from .units import MOST_COUNT


def count(option: str, value: object, most: int = MOST_COUNT) -> None:
    """Raise InputError unless `value` is a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{option}: {quote(value)}; it must be a whole number of at least 1")
    if value > most:
        raise InputError(f"{option}: {quote(value)}; it must be at most {most}")


def one_of(option: str, value: object, known: tuple[str, ...]) -> None:
    """Raise InputError unless `value` is one of those `known`."""
    if value not in known:
        raise InputError(f"{option}: {quote(value)} is not one of {', '.join(known)}")
