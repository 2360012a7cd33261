"""Values of any shape as JSON, and back: the texts "inf", "-inf" and "nan" are numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import InputError

_SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_json(value: object) -> object:
    """Return `value` as JSON values: arrays and tuples as lists, "inf" and the like as texts.

    Raises
    ------
    InputError
        If it holds something else.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [to_json(item) for item in items]
    raise InputError(f"plan: its certificate holds a {type(value).__name__}, which is no JSON")


def _from_json(value: Any) -> Any:
    if isinstance(value, str):
        return _SPECIAL.get(value, value)
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def read_mapping(values: dict[str, Any]) -> dict[str, object]:
    """Return the values that an object of a file stands for."""
    return {key: _from_json(value) for key, value in values.items()}
