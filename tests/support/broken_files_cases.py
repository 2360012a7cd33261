"""What `test_broken_files` shares with other tests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

Json = Any


Damage = Callable[[Json], object]


def put(*path: str | int, to: object) -> Damage:
    """Return the damage that writes `to` at `path`."""

    def damage(data: Json) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = to

    return damage


def drop(*path: str | int) -> Damage:
    """Return the damage that removes what is at `path`."""

    def damage(data: Json) -> None:
        for step in path[:-1]:
            data = data[step]
        del data[path[-1]]

    return damage


def again(key: str, position: int) -> Damage:
    """Return the damage that lists an item of a list twice."""
    return lambda data: data[key].append(copy.deepcopy(data[key][position]))
