"""Content of a file, decoded and parsed once, with error messages that name the file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from msgspec.inspect import BoolType, DictType, EnumType, LiteralType, Type, UnionType, type_info

from ..common.errors import InputError, quote
from ..common.units import LARGEST, NodeId

T = TypeVar("T")

WORKLOAD = "stagecut-workload"
CLUSTER = "stagecut-cluster"
PLAN = "stagecut-plan"
JOB_PLAN = "stagecut-job-plan"  # of a training job
TOPOLOGY = "stagecut-topology"
PROGRAM = "stagecut-program"
RECORDING = "stagecut-recording"
SHARDED_RECORDING = "stagecut-sharded-recording"

#: The version that is written, by format.
NEWEST: Mapping[str, int] = MappingProxyType(
    {WORKLOAD: 1, CLUSTER: 1, PLAN: 5, TOPOLOGY: 1, RECORDING: 1, PROGRAM: 1, SHARDED_RECORDING: 1}
)

#: The oldest version that is read, where that is not the first.
OLDEST: Mapping[str, int] = MappingProxyType({PLAN: 4})

#: A whole number of 64 bits, as arrays hold it.
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
#: A time, size or rate; a number of things.
Amount = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """Part of a file: every key is known, so that a misspelt one is an error."""


#: Largest depth of nested values: no format needs it, and deeper ones can only exhaust the stack.
MAX_DEPTH = 50

#: Longest file that is read, in bytes: a workload of a million nodes is shorter.
MOST_BYTES = 1 << 30

_BINARY = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x89PNG": "PNG", b"%PDF": "PDF"}
_UTF16_OR_32 = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


@dataclass(frozen=True)
class Source:
    """A file's content."""

    file: str  # the path as the user gave it, with which every message begins
    stem: str  # the file name without folder and ending, the name of its workload
    text: str  # its text
    data: Any  # the value, if the text is JSON; None otherwise
    flaw: str = ""  # why the text is not JSON, if it is not

    def fail(self, message: str) -> NoReturn:
        """Raise an InputError about this file."""
        raise InputError(f"{self.file}: {message}")

    def convert(self, kind: type[T]) -> T:
        """Return the parsed JSON as `kind`; InputError names field and node that do not fit."""
        return converted(self.data, kind, f"{self.file}: ")

    def numbered(self, ids: Iterable[NodeId]) -> dict[NodeId, int]:
        """Return the number of each node's id, which must differ."""
        index: dict[NodeId, int] = {}
        for v, node in enumerate(ids):
            if node in index:
                self.fail(f"node {plain_id(node)}: its id occurs twice; ids must differ")
            index[node] = v
        return index

    def check_ends(self, edge: Any, index: Mapping[NodeId, int]) -> str:
        """Refuse an edge unless its `sourceId` and `destId` are two nodes; return its name."""
        where = f"edge {plain_id(edge.sourceId)} → {plain_id(edge.destId)}: "
        for what, end in (("sourceId", edge.sourceId), ("destId", edge.destId)):
            if end not in index:
                low, high = plain_id(min(index)), plain_id(max(index))
                self.fail(
                    f"{where}unknown {what} {plain_id(end)} (nodes run {low} to {high}); "
                    "add the node or remove the edge"
                )
        if edge.sourceId == edge.destId:
            self.fail(f"{where}a node cannot feed itself; remove the edge")
        return where

    def table(self, wanted: str) -> dict[str, Any]:
        """Return the outermost object of a JSON file; `wanted` names such a file in messages."""
        if self.flaw:
            self.fail(self.flaw)
        if not isinstance(self.data, dict):
            self.fail(f"it must be an object {{…}}; give {wanted}")
        return self.data

    @property
    def format_name(self) -> str:
        """The Stagecut format that the file declares; an empty text for other files."""
        named = self.data.get("format") if isinstance(self.data, dict) else None
        return named if isinstance(named, str) and named.startswith("stagecut-") else ""

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the outermost object; empty if the file is anything else."""
        return frozenset(self.data) if isinstance(self.data, dict) else frozenset()


def read_source(path: str | Path) -> Source:
    """Read a file; InputError if it cannot be read, or is no text."""
    return parse(read_bytes(path), str(path), stem_of(path))


def stem_of(path: str | Path) -> str:
    """Return a file's name without folder and ending, as valid Unicode.

    Bytes that are no UTF-8, which names may have, are replaced.
    """
    return os.fsencode(Path(path).stem).decode(errors="replace")


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file; InputError if it cannot be read, or is too long."""
    file, content = str(path), bytearray()
    try:
        with open(path, "rb") as stream:
            while len(content) <= MOST_BYTES and (block := stream.read(1 << 20)):
                content += block
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{file}: it is a folder; name a file in it") from None
    except PermissionError:
        raise InputError(f"{file}: no permission to read it") from None
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file[:200]}: it cannot be read: {reason}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{file}: it has more than {MOST_BYTES >> 20} MiB; no file of ours has")
    return bytes(content)


def parse(content: bytes, file: str, stem: str) -> Source:
    """Return the source with this `content`; see `read_source`."""

    def fail(message: str) -> NoReturn:
        raise InputError(f"{file}: {message}")

    if not content.strip():
        fail("the file is empty; write it again")
    for magic, kind in _BINARY.items():
        if content.startswith(magic):
            fail(f"it is a {kind} file, not text; unpack it or name another file")
    if content.startswith(_UTF16_OR_32):
        fail("its text is UTF-16 or UTF-32; save it as UTF-8")
    if b"\0" in content:
        fail("it is binary, or text in UTF-16; name a text file in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fail(f"byte {error.start} is not UTF-8 text; save it as UTF-8")
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats)
    except _RepeatedKeyError as error:
        fail(str(error))
    except RecursionError:
        fail(f"its JSON is nested deeper than {MAX_DEPTH} levels; no format goes that deep")
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            flaw = f"its JSON ends too early (at {where}): the file is cut off; write it again"
        else:
            flaw = f"not JSON at {where}: {error.msg}; correct it there"
        return Source(file, stem, text, None, flaw)
    except ValueError:  # Python refuses to parse integers of more than 4300 digits
        fail("a number has more than 4300 digits; write it as a float")
    if _depth_exceeds(data, MAX_DEPTH):
        fail(f"its JSON is nested deeper than {MAX_DEPTH} levels; no format goes that deep")
    if re.search(r"\\u[dD][89a-fA-F]", text) and re.search(
        r"[\ud800-\udfff]", json.dumps(data, ensure_ascii=False)
    ):
        fail("a text holds half of a UTF-16 surrogate pair (\\ud800 to \\udfff); remove it")
    return Source(file, stem, text, data)


class _RepeatedKeyError(Exception):
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedKeyError(
                    f"{label(found) or 'an object'}: key {quote(key)} occurs twice; remove one of "
                    "them"
                )
            seen.add(key)
    return found


def _depth_exceeds(data: object, limit: int) -> bool:
    level = [data]
    for _ in range(limit):
        inner: list[object] = []
        for item in level:
            values = item.values() if isinstance(item, dict) else item
            if isinstance(values, list | type({}.values())):
                inner += [value for value in values if isinstance(value, dict | list)]
        if not inner:
            return False
        level = inner
    return True


def label(item: object) -> str:
    """Return the name of an item of a file in messages: ``node 7``, ``edge 12 → 7``; or ""."""
    if isinstance(item, dict):
        if type(item.get("id")) in (int, str):
            return f"node {plain_id(item['id'])}"
        if type(item.get("sourceId")) is int and type(item.get("destId")) is int:
            return f"edge {plain_id(item['sourceId'])} → {plain_id(item['destId'])}"
    return ""


def plain_id(node: int | str) -> str:
    """Return an id as text without quotes, cut if it is very long."""
    return quote(node).strip('"')


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "bool | int": "true or false (or 1 or 0)",
    "int | null": "a whole number",
    "float | null": "a number or null",
    "int | str": "a whole number or a text",
    "int | str | null": "a whole number, a text or null",
    "object": "an object {…}",
    "array": "a list […]",
    "object | null": "an object {…} or null",
    "str | null": "a text or null",
    "int | float | null": "a number or null",
    "array | null": "a list […] or null",
    "int | array": "a whole number or a list […]",
    "float | array": "a number or a list […]",
    "int | array | null": "a whole number or a list […]",
}


def converted(data: object, kind: type[T], prefix: str = "") -> T:
    """Return JSON values as `kind`; InputError, behind a prefix, if they do not fit."""
    try:
        return msgspec.convert(data, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise InputError(prefix + _reason(str(error), data, kind)) from None


def _reason(error: str, data: object, kind: type[Any]) -> str:
    """Return the reason why `data` is no `kind`, with field and node."""
    message, _, path = error.partition(" - at `")
    steps = re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path.rstrip("`"))
    where: list[str] = []
    value, known, free = data, True, ""
    for key, position in steps:
        if position == "..." and known and isinstance(value, dict):  # the value of some key
            key = free = _wrong_key(data, kind, value, error)
        known = known and (key != "" or position != "...")
        if key:
            where.append(key)
            value = value.get(key) if known and isinstance(value, dict) else None
        elif known:
            value = value[int(position)] if isinstance(value, list) else None
            plural = where.pop() if where else "item"
            name = "" if plural == free else label(value)
            if plural == "kinds" and isinstance(value, dict) and isinstance(value.get("name"), str):
                name = f"device kind {quote(value['name'])}"
            where.append(name or f"{plural}[{position}]")
    if path.startswith("key` in"):
        where.append("key")
        value, known = message.partition("'")[2].rstrip("'"), "'" in message
    begin = f"{': '.join(where)}: " if where else ""
    if match := re.fullmatch(r"Object missing required field `(.+)`", message):
        remedy = "plan again" if match[1] == "certificate" else "add it"  # nobody can write one
        return f"{begin}{match[1]} is missing; {remedy}"
    if match := re.fullmatch(r"Object contains unknown field `(.+)`", message):
        return f"{begin}unknown key {quote(match[1])}; remove it or correct its spelling"
    if message.startswith("Invalid enum value"):
        wanted = f"one of {', '.join(_choices(type_info(kind), steps))}"
    elif match := re.match(r"Expected `([^`]+)`, got", message):
        wanted = _TYPES.get(match[1], match[1])
        if isinstance(value, str) and wanted.startswith("a list"):  # typed as [x]
            wanted = wanted.replace("a list […]", f"a list: [{quote(value)}]")
    elif match := re.fullmatch(r"Expected `(?:int|float)` ([<>]=?) (\S+)", message):
        side = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}[match[1]]
        wanted = f"{side} {match[2].removesuffix('.0')}"
    else:
        return f"{begin}{message.replace('`', '')}; correct it"
    found = f" {quote(value)}" if known else " a wrong value"
    name = where[-1] if where else "the file"
    begin = f"{': '.join(where[:-1])}: " if where[:-1] else ""
    return f"{begin}{name} is{found}; it must be {wanted}"


def _wrong_key(data: object, kind: type[Any], values: dict[str, Any], error: str) -> str:
    """Return the first key of an object within `data` whose value is the one that does not fit."""
    whole, left = dict(values), list(values)
    while len(left) > 1:
        half = left[: len(left) // 2]
        values.clear()
        values.update((key, whole[key]) for key in half)
        try:
            msgspec.convert(data, kind, str_keys=True)
            wrong = False
        except msgspec.ValidationError as other:
            wrong = str(other) == error
        left = half if wrong else left[len(half) :]
    values.clear()
    values.update(whole)
    return left[0]


def _choices(kind: Type, steps: Sequence[tuple[str, str]]) -> list[str]:
    """Return the texts that are valid at a place of a type, given by keys and positions."""
    if isinstance(kind, UnionType):
        return [text for one in kind.types for text in _choices(one, steps)]
    if isinstance(kind, EnumType):
        return list(map(str, kind.cls))
    if isinstance(kind, LiteralType):
        return list(map(str, kind.values))
    if isinstance(kind, BoolType):
        return ["true", "false"]
    if isinstance(kind, DictType) and not steps:
        return _choices(kind.key_type, steps)
    if not steps:
        return []
    key = steps[0][0]
    fields = {field.encode_name: field.type for field in getattr(kind, "fields", ())}
    found = fields.get(key) if key else getattr(kind, "item_type", None)
    found = found or getattr(kind, "value_type", None)
    return [] if found is None else _choices(found, steps[1:])


def read_file(source: Source, kind: type[T], wanted: str) -> T:
    """Return a Stagecut file as `kind`, once its version is checked.

    InputError if it is of another format, newer than this code, or does not fit.
    """
    if source.flaw:
        source.fail(source.flaw)
    if source.format_name != wanted:
        what = (
            f"its format is {quote(source.format_name)}"
            if source.format_name
            else "it names no format"
        )
        source.fail(f"{what}; a file with format {quote(wanted)} is needed here")
    version = source.data.get("version")
    newest = NEWEST[wanted]
    if type(version) is int and version > newest:
        source.fail(
            f"version is {quote(version)}, written by a newer Stagecut; this one reads up to "
            f"version {newest}: update it"
        )
    oldest = OLDEST.get(wanted, 1)
    if type(version) is not int or version < oldest:
        up_to = f"a whole number from {oldest} to {newest}" if newest > oldest else str(newest)
        source.fail(f"version is {quote(version)}; it must be {up_to}")
    return replace(source, data=upgraded(source.data, version)).convert(kind)


def upgraded(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the outermost object of a Stagecut file in the form of the newest version."""
    form = data["format"]
    if form == PLAN and version < 5:
        _nest_links(data.get("problem"))
    return {**data, "version": NEWEST[form]}


def _nest_links(problem: Any) -> None:
    """Give the collectives of a mesh of a version before 5 their links as objects."""
    mesh = problem.get("mesh") if isinstance(problem, dict) else None
    primitives = mesh.get("primitives") if isinstance(mesh, dict) else None
    for one in primitives if isinstance(primitives, list) else ():
        if isinstance(one, dict) and "link" not in one:
            one["link"] = {k: one.pop(k) for k in ("latency_s", "bytes_per_s") if k in one}
