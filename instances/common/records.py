"""Frozen dataclasses as JSON has them; `problem_toml.make_record` reads them again.

Numbers, texts, choices, sets, tuples and dataclasses inside dataclasses are written as they are;
fields that have their default are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .choices import Choice


def to_plain(value: object) -> Any:
    """Return a value as JSON takes it.

    Examples
    --------
    >>> from stagecut.instances.costs.layout import Layout
    >>> to_plain(Layout(tensor=4, data=2))
    {'tensor': 4, 'data': 2}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {}
        for field in dataclasses.fields(value):
            one = getattr(value, field.name)
            if one != _default(field):
                plain[field.name] = to_plain(one)
        return plain
    if isinstance(value, Choice):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(one) for one in value)
    if isinstance(value, (list, tuple)):
        return [to_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(one) for key, one in value.items()}
    return value


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
