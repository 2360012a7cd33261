"""Timing of collectives along the axes of a mesh of processes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist

from ...instances import DeviceMesh, InputError, Link
from ...instances.common.arrays import Floats
from ...instances.model.tensor_program import COPIED, FIRST, PARTIAL
from ..execution.sharded.collectives import MeshPosition, join_mesh, step
from ..verify.sharding import collective_rounds
from .fit import Fit, fit_postal
from .group import idle_at, of_all_ranks
from .measurement import MessageTimes
from .timing import timed_together

#: Properties of a tensor before and after each collective.
COLLECTIVES: Mapping[str, tuple[int, int]] = {
    "all-gather": (0, COPIED),
    "reduce-scatter": (PARTIAL, 0),
    "all-reduce": (PARTIAL, COPIED),
    "all-to-all": (0, 1),
    "gather": (0, FIRST),
    "scatter": (FIRST, 0),
    "reduce": (PARTIAL, FIRST),
    "broadcast": (FIRST, COPIED),
}

#: Collectives with a root, after which some ranks are done before others.
_ROOTED = ("gather", "scatter", "reduce", "broadcast")


@dataclass(frozen=True, eq=False)
class MeasuredAxis:
    """Times of collectives along one axis of a mesh, on tensors of K sizes."""

    devices: int  # along the axis
    # by collective; sizes are bytes of whole tensors
    timed: Mapping[str, MessageTimes]

    @cached_property
    def fits(self) -> Mapping[str, Fit]:
        """Link fitted to each collective, each round a message."""
        return {name: fit_postal(*self._rounds(name)) for name in self.timed}

    @cached_property
    def common(self) -> Fit:
        """Link fitted to all collectives without a root."""
        rounds = [self._rounds(name) for name in self.timed if name not in _ROOTED]
        return fit_postal(
            np.concatenate([sizes for sizes, _ in rounds]),
            np.concatenate([seconds for _, seconds in rounds]),
        )

    @property
    def link(self) -> Link:
        """Latency and bandwidth fitted to all collectives without a root."""
        return self.common.link

    def _rounds(self, name: str) -> tuple[Floats, Floats]:
        """Return bytes and seconds of a round, for each size, by the rings of shardings' costs."""
        timed = self.timed[name]
        mesh = DeviceMesh((self.devices,), (Link(0.0, 1.0),))
        rounds, passed, _ = collective_rounds(mesh, name, 0)
        return passed / rounds * timed.size_bytes, timed.median_s / rounds


def measure_collectives(
    shape: Sequence[int], sizes: Sequence[int], seconds: float = 10.0
) -> tuple[MeasuredAxis, ...]:
    """Return times of collectives along each axis of a mesh, the same on all ranks, which call it.

    All groups of an axis work at the same time, as they do when a sharding runs, on whole tensors
    of at least two sizes in bytes, for about so many seconds in all, and at least 5 times each.
    Raises InputError if the mesh has another number of devices than there are ranks.
    """
    size = int(np.prod(shape))
    if dist.get_world_size() != size:
        raise InputError(
            f"--mesh: {'x'.join(map(str, shape))} has {size} devices, and "
            f"{dist.get_world_size()} processes run; start {size}"
        )
    place = join_mesh(tuple(shape))
    budget = seconds / (len(COLLECTIVES) * len(shape))
    found = []
    for axis, devices in enumerate(shape):
        if devices < 2:
            raise InputError("--mesh: an axis of one device has no collectives; leave it out")
        own = {name: _times(name, sizes, budget, axis, place) for name in COLLECTIVES}
        everywhere = of_all_ranks(own)
        timed = {}
        for name in COLLECTIVES:
            each = [one[name] for one in everywhere]
            whole = np.array(each[0][0], np.float64)
            # the rank that came last did not wait for others: its time is the collective's; with a
            # root, ranks may be done before it
            ends = np.max if name in _ROOTED else np.min
            least = tuple(ends(times, axis=0) for times in zip(*(r for _, r in each), strict=True))
            timed[name] = MessageTimes(whole, least)
        found.append(MeasuredAxis(devices, timed))
    return tuple(found)


def _times(
    name: str, sizes: Sequence[int], budget: float, axis: int, place: MeshPosition
) -> tuple[list[float], list[Floats]]:
    """Return bytes of whole tensors, and for each size the seconds of this rank in each call."""
    before, after = COLLECTIVES[name]
    p = place.mesh[axis]
    parts = []
    for size in sizes:
        rows = max(1, round(size / (4 * p * p)))
        parts.append(torch.zeros(rows * p if before < 0 else rows, p, device=place.device))
    whole = [float(4 * part.numel() * (1 if before < 0 else p)) for part in parts]

    def once(part: torch.Tensor) -> float:
        dist.barrier()
        begin = time.perf_counter()
        step(part, before, after, axis, place)
        return idle_at(place.device) - begin

    return whole, timed_together(parts, once, budget)
