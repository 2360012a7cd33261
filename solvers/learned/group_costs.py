"""What groups of units cost on each kind of device, for many partitions at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances.common.arrays import Floats, Ints
from .features import Scene


@dataclass(frozen=True, eq=False)
class GroupCosts:
    """What B partitions into G groups cost on K kinds, relative to an even load.

    Parameters
    ----------
    load
        Shape (B, G, K): compute, and what the group pays for nets that it cuts.
    memory
        Shape (B, G): bytes.
    supported
        Shape (B, G, K).
    part_of
        Shape (B, G, U): 1 for the units of a group, divided by their number.
    """

    load: Floats
    memory: Floats
    supported: Floats
    part_of: Floats


def group_costs(of: Scene, group: Ints, groups: int) -> GroupCosts:
    """Return what partitions cost, shape (B, U)."""
    batch, size = group.shape
    member = (group[:, None, :] == np.arange(groups)[:, None]).astype(np.float64)  # (B, G, U)
    compute = member @ np.where(of.supported > 0, of.compute, 0.0).T
    compute += incident(of, member) @ of.cut.T
    lacking = member @ (1 - of.supported).T
    number = np.maximum(member.sum(axis=2, keepdims=True), 1)
    assert batch == len(member)
    assert size == of.graph.size
    return GroupCosts(compute, member @ of.memory, lacking < 0.5, member / number)


def incident(of: Scene, member: Floats) -> Floats:
    """Return which nets each set of units cuts, (…, E); sets are (…, U)."""
    starts = np.cumsum([0, *(len(pins) for pins in of.graph.pins)])[:-1]
    if not len(starts):
        return np.zeros((*member.shape[:-1], 0))
    pins = np.concatenate([np.array(pins) for pins in of.graph.pins])
    held = np.add.reduceat(member[..., pins], starts, axis=-1)
    sizes = np.array([len(pins) for pins in of.graph.pins])
    return ((held > 0) & (held < sizes)).astype(np.float64)
