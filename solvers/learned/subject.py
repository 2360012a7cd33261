"""Subjects: tasks as policies place them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...formulations.throughput.whole_bytes import room_of
from ...instances import Solution
from ...instances.common.arrays import Floats, Ints
from .features import Scene
from .groups import Rules

#: Number of groups of a device that has no limit.
ANY_NUMBER = np.iinfo(np.int64).max
#: Function of groups of units, (B, U), and devices of groups, (B, G), to objectives, (B,).
Values = Callable[[Ints, Ints], Floats]


@dataclass(frozen=True, eq=False)
class Subject:
    """A task as a policy places it: scene, rules for groups, objectives of placements."""

    scene: Scene  # the policy's input
    # which splits are allowed, by the number of groups; one is drawn for each batch
    rules: tuple[Rules, ...]
    most: Ints  # (D,): groups that each device takes at most
    # the objectives of B placements, relative to an even load: of the groups of units, (B, U), and
    # the devices of groups, (B, G)
    values: Values
    # a placement of it: groups of units, (U,), and devices of groups, (G,)
    solution: Callable[[Ints, Ints], Solution]
    unit: float  # an objective of 1 in the workload's unit
    # groups run one after the other, so that objectives reach that of one device alone
    one_after_another: bool = False


def numbers_of_groups(of: Scene, most: int) -> list[int]:
    """Return numbers of groups: one per accelerator, and one per device; at most `most` and U."""
    accelerators = int(of.count[of.host == 0].sum())
    numbers = {min(n, most, of.graph.size) for n in (accelerators, int(of.count.sum()))}
    return sorted(n for n in numbers if n > 0)


def largest_room(of: Scene) -> float:
    """Return the memory of the largest device that is no host, if there is one."""
    used = of.count > 0
    able = used & (of.host == 0)
    return float(room_of(of.room[able if able.any() else used].max()))


def excess(held: Floats, room: Floats) -> Floats:
    """Return by what part memories are exceeded, shape (B,); bytes held and room are (B, D)."""
    with np.errstate(all="ignore"):
        over = np.where(held > room_of(room), held / np.maximum(room, 1.0), 0.0)
    total: Floats = np.minimum(over, 1e3).sum(axis=1)
    return total


def with_penalty(value: Floats, broken: Floats, devices: int) -> Floats:
    """Return values, (B,), where what breaks a rule counts as all units on one device at least.

    By as much as it breaks it, `broken`, it counts more.
    """
    worth: Floats = np.where(broken > 0, np.maximum(value, devices) * (1 + broken), value)
    return worth
