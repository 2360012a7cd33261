"""Problem files: TOML whose fields are those of the problems in Python.

A table names the problem and has its fields; omitted ones have their defaults::

    [pipeline]
    microbatches = 8
    schedule = "zb-h1"
    placement_rules = { pins = [["embed*", 0]], max_stages = 4 }

Other tables, which the caller names, hold the fields of other records, such as limits of a search.
The fields are those of the dataclasses, so that a new field needs no code here. `to_plain` converts
any frozen dataclass to JSON values, which `make_record` converts back.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec.inspect import (
    DataclassType,
    EnumType,
    FrozenSetType,
    TupleType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from ..common.choices import Choice
from ..common.errors import InputError, quote
from ..common.units import parse_bytes, parse_rate
from ..model.problem import Problem
from .plan_json import CODECS
from .source import converted, read_source

R = TypeVar("R")

#: Fields of a TOML table by name.
Table = dict[str, Any]
#: Fields whose values may be texts with a unit, such as ``16GiB`` and ``25GB/s``.
QUANTITIES: Mapping[str, Callable[[str, str], float]] = {
    **dict.fromkeys(("memory_bytes", "bucket_bytes"), parse_bytes),
    **dict.fromkeys(("bandwidth", "server_bandwidth"), parse_rate),
}
#: Constructors of records from texts, by the type of the record.
FromText = Mapping[type[Any], Callable[[str], object]]

#: Problems by the name of the table that states them.
PROBLEMS: dict[str, type[Problem]] = {name: codec.problem for name, codec in CODECS.items()}


def read_tables(path: str | Path, others: Iterable[str] = ()) -> tuple[str, dict[str, Table]]:
    """Return the name of the problem that a file states, and the file's tables by name.

    `others` are the tables that there may be beside that of the problem. InputError if it is no
    TOML, states no problem or several, or has another table.
    """
    source = read_source(path)
    try:
        tables = tomllib.loads(source.text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        source.fail(f"no TOML: {error}; correct it")
    known = [*PROBLEMS, *others]
    for name, table in tables.items():
        if name not in known:
            source.fail(f"unknown table {quote(name)}; it must be one of {', '.join(known)}")
        if not isinstance(table, dict):
            source.fail(f"{name} is {quote(table)}; it must be a table: [{name}]")
    stated = [name for name in tables if name in PROBLEMS]
    if len(stated) != 1:
        found = ", ".join(stated) or "none"
        source.fail(f"it must state one problem, and has {found}; add or remove a table")
    return stated[0], tables


def read_setting(text: str) -> Table:
    """Return the fields that a text such as ``stages=4,mode=both`` sets.

    The text is the content of an inline table in TOML, in which texts need no quotes. InputError if
    it sets no field.

    Examples
    --------
    >>> read_setting("stages=4,mode=both"), read_setting("schedule=my schedule.csv")
    ({'stages': 4, 'mode': 'both'}, {'schedule': 'my schedule.csv'})
    >>> read_setting("tensor=[1, 2],schedules=[1f1b, zb-h1]")
    {'tensor': [1, 2], 'schedules': ['1f1b', 'zb-h1']}
    """
    field, _, value = text.partition("=")
    words = re.sub(r"=([^,\s\"'\[\]{}=\\]+)(?=,|$)", lambda found: f"={_quoted(found[1])}", text)
    items = re.sub(
        r"([\[,]\s*)([^,\s\"'\[\]{}=\\]+)(?=\s*[,\]])", lambda f: f[1] + _quoted(f[2]), words
    )
    for attempt in (text, words, items, f"{field}={_quoted(value)}"):
        found = _in_braces(attempt)
        if found and value:
            return found
    raise InputError(
        f"{quote(text)} sets no field, or one twice; write FIELD=VALUE, such as overlap=true"
    )


def _quoted(value: str) -> str:
    """Return a value in TOML: a text without quotes gets them."""
    if _in_braces(f"it={value}"):
        return value
    plain = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'


def _in_braces(text: str) -> Table:
    """Return the inline table with this content; empty if it is no such content."""
    try:
        found = tomllib.loads(f"it = {{{text}}}")
    except (ValueError, RecursionError):
        return {}
    return found["it"] if list(found) == ["it"] else {}


def make_record(
    kind: type[R], values: Table, where: str = "", from_text: FromText | None = None
) -> R:
    """Return the dataclass of the given fields; `from_text` makes values of texts.

    InputError, about the file `where`, if a field does not exist or is missing, or has a wrong
    value.
    """
    prefix = f"{where}: " if where else ""
    try:
        ready = _ready(values, type_info(kind), from_text or {}, "")
        return converted(ready, kind)
    except InputError as error:
        raise InputError(f"{prefix}{error}") from None


def _ready(value: Any, kind: Type, from_text: FromText, place: str) -> Any:
    """Return a value with texts replaced by records; InputError at an unknown field."""
    match kind:
        case DataclassType() if isinstance(value, str) and kind.cls in from_text:
            return from_text[kind.cls](value)
        case DataclassType() if isinstance(value, dict):
            fields = {field.name: field.type for field in kind.fields}
            for key in value:
                if key not in fields:
                    known = ", ".join(fields)
                    raise InputError(f"{place}unknown field {quote(key)}; use one of {known}")
            return {
                key: QUANTITIES[key](item, f"{place}{key}")
                if key in QUANTITIES and isinstance(item, str)
                else _ready(item, fields[key], from_text, f"{place}{key}: ")
                for key, item in value.items()
            }
        case VarTupleType(item_type=EnumType()) if isinstance(value, str):
            return [value]  # one choice needs no brackets
        case VarTupleType(item_type=FrozenSetType()) if isinstance(value, str):
            return [[value]]
        case VarTupleType() if isinstance(value, list):
            return [_ready(item, kind.item_type, from_text, place) for item in value]
        case TupleType() if isinstance(value, list) and len(value) == len(kind.item_types):
            pairs = zip(value, kind.item_types, strict=True)
            return [_ready(item, one, from_text, place) for item, one in pairs]
        case UnionType():
            records = [one for one in kind.types if isinstance(one, DataclassType | VarTupleType)]
            return _ready(value, records[0], from_text, place) if len(records) == 1 else value
    return value


def required_fields(kind: type[Any]) -> list[str]:
    """Return the names of the fields of a dataclass that have no default."""
    stated = type_info(kind)
    assert isinstance(stated, DataclassType)
    return [field.name for field in stated.fields if field.required]


def to_plain(value: object) -> Any:
    """Return a value as JSON values, records without fields that have their defaults.

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
