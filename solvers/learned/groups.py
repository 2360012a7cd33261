"""The state of a partition in the making: what joining each group would mean for the next unit.

All B samples of a batch take the units in one order, so that one step is a few operations on
arrays. Groups are numbered in the order in which they get their first unit: an empty group is like
any other, and only the first of them is offered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from .features import Scene

#: Features of a group.
GROUP_FEATURES = 10
_LIMIT = 4.0


@dataclass(frozen=True)
class Rules:
    """Which groups a unit may join.

    Parameters
    ----------
    groups
        How many there are, G.
    contiguous
        A unit joins the group of the unit before it, or the next one.
    all_used
        No group may stay empty (then there are at least as many units as groups).
    room
        Bytes of a group at most.
    """

    groups: int
    contiguous: bool = False
    all_used: bool = False
    room: float = np.inf


@dataclass(eq=False)
class Groups:
    """B partitions of the same units into at most G groups.

    Parameters
    ----------
    of
        What is divided.
    rules
        What is allowed.
    target
        Shape (B,): the load, relative to an even one, that the groups are compared with.
    """

    of: Scene
    rules: Rules
    target: Floats
    group: Ints = field(init=False)
    _work: Floats = field(init=False)
    _closed: Floats = field(init=False)
    _open: Floats = field(init=False)
    _memory: Floats = field(init=False)
    _count: Ints = field(init=False)
    _placed: Ints = field(init=False)
    _used: Ints = field(init=False)
    _last: Ints = field(init=False)
    _rest: float = field(init=False)

    def __post_init__(self) -> None:
        batch, groups, nets = len(self.target), self.rules.groups, len(self.of.graph.pins)
        self.group = np.full((batch, self.of.graph.size), -1, np.int64)
        self._work, self._closed, self._open, self._memory = (
            np.zeros((batch, groups)) for _ in range(4)
        )
        self._count = np.zeros((batch, nets, groups), np.int16)
        self._sizes = np.array([len(pins) for pins in self.of.graph.pins], np.int64)
        self._placed = np.zeros(nets, np.int64)
        self._used = np.zeros(batch, np.int64)
        self._last = np.full(batch, -1, np.int64)
        self._rest = float(self.of.least.sum())
        self._left = self.of.graph.size
        self._rest_memory = float(self.of.memory.sum())

    def choices(self, unit: int) -> tuple[Floats, Bools]:
        """Return the features of the groups for a unit, (B, G, `GROUP_FEATURES`), and the mask."""
        nets = self.of.nets_of[unit]
        weight, pins = self.of.most_cut[nets][:, None], self._sizes[nets][:, None]
        own, placed = self._count[:, nets], self._placed[nets][:, None]
        new = own == 0
        closed = self._work + self._closed
        own_load = self.of.least[unit]
        after = closed + own_load + ((new * 1.0 - (own + 1 == pins)) * weight).sum(axis=1)
        opened = self._work + self._open
        least = opened + own_load + ((new & (placed > 0)) * weight).sum(axis=1)
        near = (~new * weight).sum(axis=1) / (weight.sum() + 1e-9)
        memory = self._memory + self.of.memory[unit]
        room = self.rules.room
        held = memory / room if 0 < room < np.inf else 0 * memory
        number = np.arange(self.rules.groups)
        target = self.target[:, None]
        slack = np.maximum(target - opened, 0).sum(axis=1, keepdims=True)
        spare = (slack - self._rest) / (target * self.rules.groups)
        empty = number >= self._used[:, None]
        found = np.broadcast_arrays(
            closed / target,
            after / target,
            least / target,
            near,
            held,
            number == self._last[:, None],
            empty,
            spare,
            1 - self._used[:, None] / self.rules.groups,
            np.full_like(closed, 1 / self.rules.groups),
        )
        features = np.clip(np.stack(found, axis=2), -_LIMIT, _LIMIT)
        return features.astype(np.float32), self._mask(memory)

    def _mask(self, memory: Floats) -> Bools:
        number = np.arange(self.rules.groups)
        used = self._used[:, None]
        allowed = number <= used
        if self.rules.contiguous:
            allowed &= number >= used - 1
        if self.rules.all_used:
            due = self._left <= self.rules.groups - used
            allowed &= ~due | (number == used)
        fits = allowed & (memory <= self.rules.room)
        if self.rules.contiguous:  # what is left must fit into this group and those behind it
            rest = self._memory + self._rest_memory
            fits &= rest <= self.rules.room * (self.rules.groups - number)
        alone = fits.any(axis=1, keepdims=True)
        return np.where(alone, fits, allowed)

    def join(self, unit: int, chosen: Ints) -> None:
        """Put a unit into a group of each sample, shape (B,)."""
        rows, nets = np.arange(len(chosen)), self.of.nets_of[unit]
        weight, pins, placed = self.of.most_cut[nets], self._sizes[nets], self._placed[nets]
        own = self._count[:, nets]
        mine = own[rows, :, chosen]
        self._closed[rows, chosen] += ((mine == 0) * 1.0 - (mine + 1 == pins)) @ weight
        self._open[rows, chosen] += ((mine == 0) & (placed > 0)) @ weight
        alone = (own > 0) & (own == placed[:, None])
        alone[rows, :, chosen] = False
        self._open += (alone * weight[:, None]).sum(axis=1)
        self._count[rows[:, None], nets, chosen[:, None]] += 1
        self._placed[nets] += 1
        self._work[rows, chosen] += self.of.least[unit]
        self._memory[rows, chosen] += self.of.memory[unit]
        self._used = np.maximum(self._used, chosen + 1)
        self._last = chosen
        self._rest -= float(self.of.least[unit])
        self._rest_memory -= float(self.of.memory[unit])
        self._left -= 1
        self.group[:, unit] = chosen
