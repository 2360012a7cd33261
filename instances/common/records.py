"""Frozen dataclasses as JSON has them, and back, by their fields' types.

Numbers, texts, choices, sets, tuples and dataclasses inside dataclasses are written as they are;
fields that have their default are left out. Reading asks of each value that it is of the field's
type, and names the field where it is not.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from .choices import Choice
from .errors import InputError, quote

T = TypeVar("T")


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


def from_plain(kind: type[T], plain: object, where: str) -> T:
    """Return the dataclass that `plain` states.

    InputError if a field is unknown, missing, or not of its type; `where` is the file and field
    that it names.

    Examples
    --------
    >>> from stagecut.instances.costs.layout import Layout
    >>> from_plain(Layout, {"tensor": 4, "data": 2}, "layout").devices
    8
    """
    found = _read(kind, plain, where)
    assert isinstance(found, kind)
    return found


def _read(kind: Any, plain: Any, where: str) -> Any:
    """Return a value of a type from JSON."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _read_union(inside, plain, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_record(kind, plain, where)
    if origin in (tuple, frozenset) or kind in (tuple, frozenset):
        if not isinstance(plain, list):
            raise InputError(f"{where}: {quote(plain)}; it must be a list")
        one = inside[0] if inside else Any
        values = [_read(one, value, f"{where}[{k}]") for k, value in enumerate(plain)]
        return (origin or kind)(values)
    if origin in (Mapping, dict) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(plain, dict):
            raise InputError(f"{where}: {quote(plain)}; it must be an object")
        key, value = inside
        return {
            _read(key, name, where): _read(value, one, f"{where}.{name}")
            for name, one in plain.items()
        }
    if isinstance(kind, type) and issubclass(kind, Choice):
        return kind.of(where, plain)
    return _read_scalar(kind, plain, where)


def _read_union(kinds: tuple[Any, ...], plain: Any, where: str) -> Any:
    """Return a value of the first of several types that it fits."""
    if plain is None and type(None) in kinds:
        return None
    problem: InputError | None = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _read(kind, plain, where)
            except InputError as error:
                problem = problem or error
    raise problem or InputError(f"{where}: {quote(plain)}; leave it out")


def _read_record(kind: type, plain: Any, where: str) -> Any:
    if not isinstance(plain, dict):
        raise InputError(f"{where}: {quote(plain)}; it must be an object")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in plain:
        if name not in fields:
            raise InputError(f"{where}.{name}: no such field; there are {', '.join(fields)}")
    for name, field in fields.items():
        if name not in plain and _default(field) is dataclasses.MISSING:
            raise InputError(f"{where}.{name}: it is missing")
    values = {name: _read(hints[name], one, f"{where}.{name}") for name, one in plain.items()}
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{where}.{error}") from None


def _read_scalar(kind: Any, plain: Any, where: str) -> Any:
    """Return a number, a text or a truth value."""
    if kind is Any:
        return plain
    if kind is bool or isinstance(plain, bool):
        right = kind is bool and isinstance(plain, bool)
    elif kind is float:
        right = isinstance(plain, (int, float))
    else:
        right = isinstance(plain, kind)
    if not right:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        raise InputError(f"{where}: {quote(plain)}; it must be {names.get(kind, kind.__name__)}")
    return float(plain) if kind is float else plain
