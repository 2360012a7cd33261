"""Partitions under construction, costs of their groups, and orders in which units join groups.

All B samples of a batch take the units in one order, so that a step is a few operations on arrays.
Groups are numbered in the order in which they get their first unit: empty groups are alike, and
only the first of them is offered.

Contiguous groups are intervals of the order, so that the order decides which plans can be drawn. An
order that keeps branches together cannot give a group the first units of several branches, as good
plans of recurrent layers do; one that interleaves branches can hardly give it a whole branch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx
import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from .features import MOST_SHOWN, Observation


@dataclass(frozen=True, eq=False)
class GroupCosts:
    """Costs of B partitions into G groups on K kinds; loads are relative to an even load."""

    load: Floats  # (B, G, K): compute, and what the group pays for nets that it cuts
    memory: Floats  # (B, G): bytes
    supported: Floats  # (B, G, K)
    part_of: Floats  # (B, G, U): 1 for the units of a group, divided by their number


#: Features of a group.
GROUP_FEATURES = 10


@dataclass(frozen=True)
class GroupRules:
    """Rules for the groups that a unit may join."""

    groups: int  # number of groups, G
    contiguous: bool = False  # a unit joins the group of the unit before it, or the next one
    # whether no group may stay empty; there are at least as many units as groups then
    all_used: bool = False
    room: float = np.inf  # largest number of bytes of a group


class Partitions:
    """B partitions of the same units into at most G groups.

    `target`, shape (B, G), is the load that each group aims at, relative to an even one, with each
    unit on the kind that is fastest at it.
    """

    def __init__(self, of: Observation, rules: GroupRules, target: Floats) -> None:
        self.of, self.rules, self.target = of, rules, target
        batch, groups, nets = len(target), rules.groups, len(of.graph.pins)
        self.group = np.full((batch, of.graph.size), -1, np.int64)
        self._work, self._closed, self._open, self._memory = np.zeros((4, batch, groups))
        self._count = np.zeros((batch, nets, groups), np.int16)
        self._sizes = np.array([len(pins) for pins in of.graph.pins], np.int64)
        self._placed = np.zeros(nets, np.int64)
        self._used = np.zeros(batch, np.int64)
        self._last = np.full(batch, -1, np.int64)
        self._rest, self._rest_memory = float(of.least.sum()), float(of.memory.sum())
        self._left = of.graph.size

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
        target = self.target
        slack = np.maximum(target - opened, 0).sum(axis=1, keepdims=True)
        spare = (slack - self._rest) / target.sum(axis=1, keepdims=True)
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
        features = np.clip(np.stack(found, axis=2), -MOST_SHOWN, MOST_SHOWN)
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
        """Put a unit into the chosen group of each sample, shape (B,)."""
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


def group_costs(of: Observation, group: Ints, groups: int) -> GroupCosts:
    """Return the costs of partitions, given by the group of each unit, shape (B, U)."""
    member = (group[:, None, :] == np.arange(groups)[:, None]).astype(np.float64)  # (B, G, U)
    compute = member @ np.where(of.supported > 0, of.compute, 0.0).T
    compute += cut_nets(of, member) @ of.cut.T
    lacking = member @ (1 - of.supported).T
    number = np.maximum(member.sum(axis=2, keepdims=True), 1)
    return GroupCosts(compute, member @ of.memory, lacking < 0.5, member / number)


def cut_nets(of: Observation, member: Floats) -> Floats:
    """Return which nets each set of units cuts, (…, E); sets are (…, U)."""
    starts = np.cumsum([0, *(len(pins) for pins in of.graph.pins)])[:-1]
    if not len(starts):
        return np.zeros((*member.shape[:-1], 0))
    pins = np.concatenate([np.array(pins) for pins in of.graph.pins])
    held = np.add.reduceat(member[..., pins], starts, axis=-1)
    sizes = np.array([len(pins) for pins in of.graph.pins])
    return ((held > 0) & (held < sizes)).astype(np.float64)


def random_order(of: Observation, rng: np.random.Generator) -> Ints:
    """Return a topological order of the units, drawn at random, that keeps branches together.

    It is that of a depth-first search from the sinks against the edges. Units of one cycle are
    neighbours, in random order.
    """
    blocks, priority = of.blocks, rng.random(len(of.blocks)).tolist()
    before: nx.DiGraph[int] = nx.DiGraph()
    ends: list[int] = sorted(blocks, key=lambda b: (blocks.out_degree(b) > 0, priority[b]))
    before.add_nodes_from(ends)
    before.add_edges_from((b, a) for a, b in blocks.edges)

    def by_priority(found: Iterable[int]) -> list[int]:
        return sorted(found, key=priority.__getitem__, reverse=True)

    return _units(of, nx.dfs_postorder_nodes(before, sort_neighbors=by_priority), rng)


def interleaved_order(of: Observation, rng: np.random.Generator) -> Ints:
    """Return a topological order of the units, drawn at random, that mixes branches.

    Each next unit is drawn from those whose predecessors are in it already. Units of one cycle are
    neighbours, in random order.
    """
    blocks, priority = of.blocks, rng.random(len(of.blocks)).tolist()
    sequence = nx.lexicographical_topological_sort(blocks, key=priority.__getitem__)
    return _units(of, sequence, rng)


def grouped_order(of: Observation, order: Ints, group: Ints) -> Ints:
    """Return an order with the units of each group, (U,), made contiguous; ties as in `order`.

    If groups depend on each other in a cycle, the order stays as it is.
    """
    groups: nx.DiGraph[int] = nx.DiGraph()
    groups.add_nodes_from(np.unique(group).tolist())
    groups.add_edges_from((a, b) for a, b in group[of.edges].tolist() if a != b)
    if not nx.is_directed_acyclic_graph(groups):
        return order
    place = {part: p for p, part in enumerate(nx.topological_sort(groups))}
    return order[np.argsort([place[p] for p in group[order].tolist()], kind="stable")]


def _units(of: Observation, blocks: Iterable[int], rng: np.random.Generator) -> Ints:
    """Return the units of blocks in their order; those of one block in random order."""
    members = [sorted(of.blocks.nodes[b]["members"]) for b in blocks]
    return np.array([u for units in members for u in rng.permutation(units).tolist()], np.int64)
