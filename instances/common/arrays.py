"""Checked, read-only arrays: what was valid when it was made stays valid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Kinds of numbers that turn into a type without loss: an index of 0.5 or a flag of 2 is an error.
_ACCEPTED = {"float64": "fiub", "int64": "iu", "bool": "b"}
_WANTED = {"float64": "numbers", "int64": "whole numbers", "bool": "true, false, 0 or 1"}


def frozen(values: Iterable[Any] | NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return `values` as a new read-only array of type `dtype`."""
    items = values if isinstance(values, np.ndarray) else list(values)
    array = np.array(items, dtype=dtype)
    array.setflags(write=False)
    return array


def rebuild(value: Any) -> tuple[type[Any], tuple[object, ...]]:
    """Return the `__reduce__` value of a dataclass, its read-only mappings made plain dicts."""
    return type(value), tuple(_plain(getattr(value, item.name)) for item in fields(value))


def _plain(value: Any) -> Any:
    """Return a value with dictionaries in place of read-only mappings."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return dict(value) if isinstance(value, MappingProxyType) else value


def checked(
    values: Iterable[Any] | NDArray[Any], dtype: DTypeLike, what: str, columns: int | None = None
) -> NDArray[Any]:
    """Return `values` as a new read-only array of one axis; with `columns`, of shape (n, columns).

    InputError about `what` if they are not numbers, lose something as `dtype`, or have another
    shape.
    """
    wanted = _WANTED[np.dtype(dtype).name]
    try:
        raw = np.asarray(values if isinstance(values, np.ndarray) else list(values))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what}: it must be a list of {wanted}") from None
    if not raw.size:
        raw = np.zeros(0 if columns is None else (0, columns), dtype)
    shape_is_right = raw.ndim == 1 if columns is None else raw.shape[1:] == (columns,)
    if not shape_is_right:
        shape = "one list" if columns is None else f"rows of {columns}"
        raise InputError(f"{what}: its shape is {raw.shape}; it must be {shape} of {wanted}")
    if raw.dtype.kind == "O":
        raw = _numbers(raw, what, wanted)
    kept = raw.dtype.kind in _ACCEPTED[np.dtype(dtype).name]
    if not kept and raw.dtype.kind in "biuf":
        with np.errstate(invalid="ignore"):
            kept = bool((raw.astype(dtype) == raw).all())
    if not kept:
        raise InputError(f"{what}: it must be a list of {wanted}, not of {raw.dtype.name}")
    return frozen(raw, dtype)


def _numbers(raw: NDArray[Any], what: str, wanted: str) -> NDArray[Any]:
    """Return an array of Python objects as numbers; None is not one."""
    try:
        if any(isinstance(value, str | bytes) or value is None for value in raw.flat):
            raise TypeError
        return raw.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what}: it must be a list of {wanted}") from None


def even_ends(total: Floats, parts: int) -> Ints:
    """Return the ends of parts of about equal sums, each with one item at least; shape (parts,).

    `total` has the sums of the first 1 … n ≥ `parts` items.
    """
    number, n = np.arange(1, parts + 1), len(total)
    ends = np.searchsorted(total, total[-1] * number / parts) + 1
    ends = np.minimum(ends, n - parts + number)
    ends[-1] = n
    return np.asarray(np.maximum.accumulate(ends - number) + number)


def rows(lists: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return lists of numbers as compressed sparse rows: offsets of the rows, and all numbers."""
    start = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    return start, np.array([x for row in lists for x in row], dtype=np.int64)


def summable(numbers: Floats) -> Floats:
    """Return numbers rounded down to a grid of powers of two, on which any sum of them is exact."""
    exponent = math.frexp(float(numbers.sum()))[1]
    step = math.ldexp(1.0, max(exponent - 52, -1022))
    return np.asarray(np.floor(numbers / step) * step)


def increasing(edges: Ints) -> Ints:
    """Return the edges sorted by source and target, without duplicates; shape (m, 2)."""
    ahead = np.diff(edges, axis=0)
    if ((ahead[:, 0] > 0) | (ahead[:, 0] == 0) & (ahead[:, 1] > 0)).all():
        return edges
    return np.unique(edges, axis=0)


def grouped(edges: Ints, n: int) -> tuple[tuple[int, ...], ...]:
    """Return the targets of each node, given edges sorted by source and target."""
    targets = edges[:, 1].tolist()
    starts = np.searchsorted(edges[:, 0], np.arange(n + 1)).tolist()
    return tuple(tuple(targets[a:b]) for a, b in pairwise(starts))
