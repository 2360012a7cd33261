"""What the stages of one device together cost every plan: paths that stay on a device.

A path π on which the stages of device d have the counts c_s, and all stages at least o_F forward
and o_B backward passes, shows that a plan takes at least

    o_F F + o_B C + Σ_{s on d} (c_s − o) · durations_s,     F, C the compute of all nodes,

so with a target, each device has room for some more work, and all of them must have room for what
is left. Used where several stages share a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....instances.common.arrays import Bools, Floats
from ..stage_paths import HEAVY, LIGHT, StagePaths


@dataclass(frozen=True, eq=False)
class DevicePath:
    """A path that stays on one device; see the module.

    Parameters
    ----------
    base
        o_F F + o_B C.
    excess
        Shape (P, 4): c − o for the stages of the device, 0 for all others; not negative.
    least
        Least excess of a unit of forward or backward work there.
    """

    base: float
    excess: Floats
    least: float


@dataclass(frozen=True, eq=False)
class DeviceLimits:
    """The paths of each device.

    Parameters
    ----------
    paths
        The plans.
    of_device
        For each device its paths.
    """

    paths: StagePaths
    of_device: tuple[tuple[DevicePath, ...], ...]

    def least(self, s: int, duration: Floats, own: Floats) -> Floats:
        """Return bounds of plans that end with stages s + 1, … and have one of several as stage s.

        Parameters
        ----------
        duration
            Shape (P, 4): of the stages behind s; 0 before.
        own
            Shape (R, 4): durations of the candidates.
        """
        d = int(self.paths.chain.order.device[s])
        bound = np.full(len(own), -np.inf)
        for path in self.of_device[d]:
            fixed = path.base + float((path.excess[s + 1 :] * duration[s + 1 :]).sum())
            bound = np.maximum(bound, fixed + own @ path.excess[s])
        return bound

    def room(self, s: int, duration: Floats, own: Floats, target: float) -> Floats:
        """Return how much work stages before s may have below a target, shape (R,)."""
        device = self.paths.chain.order.device
        total = np.zeros(len(own))
        for d, paths in enumerate(self.of_device):
            if not (device[:s] == d).any():
                continue
            rooms = np.full(len(own), np.inf)
            for path in paths:
                taken = path.base + float((path.excess[s + 1 :] * duration[s + 1 :]).sum())
                if device[s] == d:
                    taken = taken + own @ path.excess[s]
                if path.least > 0:
                    rooms = np.minimum(rooms, (target - taken) / path.least)
            total += np.maximum(rooms, 0.0)
        return total


def device_limits(paths: StagePaths) -> DeviceLimits:
    """Return the paths that are longest where the stages of one device are the largest."""
    order = paths.chain.order
    forward, compute = paths.stages.ahead[:, -1].tolist()
    found = []
    for d in range(len(order.tables)):
        own = order.device == d
        listed = []
        for heavy in HEAVY:
            f, b = (np.where(own, time, LIGHT) for time in heavy)
            _, counts = paths.chain.longest_path(paths.chain.durations(f, b, b))
            listed.append(_device_path(counts, own, forward, compute))
        found.append(tuple(listed))
    return DeviceLimits(paths, tuple(found))


def _device_path(counts: Floats, own: Bools, forward: float, compute: float) -> DevicePath:
    """Return the path; split backward passes on it are left out, which makes it no larger."""
    ahead, back = counts[:, 0], counts[:, 1]
    least_ahead, least_back = float(ahead.min()), float(back.min())
    excess = np.zeros_like(counts)
    excess[own, 0] = ahead[own] - least_ahead
    excess[own, 1] = back[own] - least_back
    least = float(excess[own, :2].min())
    return DevicePath(least_ahead * forward + least_back * compute, excess, least)
