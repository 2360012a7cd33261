"""Damage to files of every format, and what reading them may come to."""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stagecut.instances.common.errors import StagecutError

#: What became of a damaged file: an error of one line, or a value that is saved and read again
#: as the same.
Outcome = Literal["refused", "harmless"]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, -0.0, 1e-320, 1e308, 10**30, 10**400, float("nan"),
    float("inf"), float("-inf"), "", "x", "\n", "inf", "nan", [], [[]], {}, {"id": 4}, [1, 2],
    "é" * 500, 2**31, 2**63, -(2**63), "\u2028", "0", [None] * 3, {"a": {"b": {}}},
]  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A good file.

    Parameters
    ----------
    content
        Its bytes.
    read
        Reads a path and returns what it says, as the text of a file of ours if there is one.
    reread
        Reads that file; None if there is none.
    """

    content: bytes
    read: Callable[[Path], str]
    reread: Callable[[Path], str] | None = None


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return a file's content, damaged: its bytes, its end, or values in its JSON."""
    try:
        data = json.loads(content)
    except ValueError:
        data = None
    way = rng.randrange(10)
    if way == 0:
        return content[: rng.randrange(len(content))]
    if way < 4 or data is None:
        return damaged_bytes(content, rng)
    for _ in range(rng.randint(1, 3)):
        damage_tree(data, rng)
    if way == 4:
        return (b"[" * rng.randint(1, 100_000))[: rng.choice([60, 2000, 100_000])] + content
    if way == 5:  # a key twice
        key = rng.choice(list(data)) if isinstance(data, dict) and data else "a"
        return (f'{{"{key}": {json.dumps(rng.choice(ODD))},' + json.dumps(data)[1:]).encode()
    return json.dumps(data, ensure_ascii=rng.random() < 0.5).encode(errors="replace")


def outcome(sample: Sample, content: bytes, folder: Path) -> Outcome:
    """Return what becomes of a damaged file.

    Raises
    ------
    AssertionError
        If its error is not one printable line of bearable length, or what it says changes when it
        is saved and read again.
    Exception
        Whatever else happens, warnings included: a defect.
    """
    path = folder / "damaged"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            said = sample.read(path)
        except StagecutError as error:
            line = str(error)
            assert line.isprintable(), line
            assert len(line) < 600, line
            assert str(path) in line, line
            return "refused"
    again = folder / "again"
    if sample.reread is not None:
        again.write_text(said)
        assert sample.reread(again) == said, said
    return "harmless"


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to four changes."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.randint(1, 30)]
            case 2:
                changed[at:at] = rng.choice([b"0", b"-", b"}", b"]", b'"', b",", b"\\", b"e9"])
            case 3:
                other = rng.randrange(len(changed)) if changed else 0
                changed[at:at] = changed[other : other + rng.randint(1, 60)]
            case _:
                changed[at : at + 1] = rng.choice([b"9", b"1e", b"\xff", b" ", b"\n", b"null"])
    return bytes(changed)


def damage_tree(data: Any, rng: random.Random) -> None:
    """Delete, repeat or replace one value somewhere in JSON data."""
    places = [(box, key) for box in boxes(data) for key in keys(box)]
    if not places:
        return
    box, key = rng.choice(places)
    match rng.randrange(4):
        case 0:
            del box[key]
        case 1 if isinstance(box, list):
            box.append(copy.deepcopy(box[key]))
        case 2:
            other, at = rng.choice(places)
            box[key] = copy.deepcopy(other[at])
        case _:
            box[key] = copy.deepcopy(rng.choice(ODD))


def boxes(data: Any) -> list[Any]:
    """Return every list and object in `data`, itself included."""
    found = [data] if isinstance(data, dict | list) else []
    inner = data.values() if isinstance(data, dict) else data if found else []
    return found + [box for item in inner for box in boxes(item)]


def keys(box: Any) -> list[Any]:
    """Return what items of a list or object are called by."""
    return list(box) if isinstance(box, dict) else list(range(len(box)))
