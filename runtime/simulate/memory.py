"""Memory of each device over time: weights, versions of weights, activations in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances.common.arrays import Floats, Ints, frozen
from ..schedules.actions import Kind, Schedule, WeightVersions
from .stages import BACKWARD, FORWARD, StageGraph


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """Memory of one device, in bytes."""

    weights: float  # what the stages on the device keep all the time, weights in one version
    versions: float  # further versions of the weights
    # times, activations: steps of what activations take: `activations[i]` holds from `times[i]` on
    times: Floats
    activations: Floats
    in_flight: dict[int, int]  # most microbatches held at once, by stage
    capacity: float  # what the device has

    @property
    def peak_activations(self) -> float:
        """Most that activations take at once."""
        return float(self.activations.max(initial=0.0))

    @property
    def peak(self) -> float:
        """Most that is in use at once."""
        return self.weights + self.versions + self.peak_activations

    @property
    def peak_time(self) -> float:
        """When the peak is reached first."""
        return float(self.times[int(np.argmax(self.activations))]) if len(self.times) else 0.0


def memory_over_time(
    stages: StageGraph, schedule: Schedule, starts: list[Floats], ends: list[Floats]
) -> tuple[DeviceMemory, ...]:
    """Return the memory of each device, given starts and ends of its actions.

    A microbatch's activations are held from the begin of its forward to the end of its backward, or
    of its weight gradient where the backward is split; without a backward pass, to the end of the
    forward. Weights have one version, two (2BW), or one per microbatch in flight (PipeDream).
    O(actions · log actions).
    """
    result = []
    for d, table in enumerate(schedule.actions):
        stage, kind = table[:, 0], table[:, 1]
        last = ((kind == Kind.B) | (kind == Kind.W)) & stages.present[stage, FORWARD]
        last |= (kind == Kind.F) & ~stages.present[stage, BACKWARD]
        begin = kind == Kind.F
        times = np.concatenate((starts[d][begin], ends[d][last]))
        owner = np.concatenate((stage[begin], stage[last]))
        change = np.concatenate((np.ones(int(begin.sum())), -np.ones(int(last.sum()))))
        # at one time, in the order of the actions: one that takes no time begins before it ends
        place = np.concatenate((2 * np.flatnonzero(begin), 2 * np.flatnonzero(last) + 1))
        order = np.lexsort((place, times))
        times, owner, change = times[order], owner[order], change[order]
        held = np.cumsum(change * stages.activation_bytes[owner])
        flying = _most(owner, change)
        own = [s for s, devices in enumerate(stages.replicas) if d in devices]
        extra = {
            WeightVersions.ONE: 0,
            WeightVersions.TWO: 1,
            WeightVersions.IN_FLIGHT: -1,
        }[WeightVersions(schedule.versions)]
        result.append(
            DeviceMemory(
                weights=float(stages.resident_bytes[own].sum()),
                versions=float(
                    sum(
                        (flying.get(s, 1) - 1 if extra < 0 else extra) * stages.weight_bytes[s]
                        for s in own
                        if stages.present[s, BACKWARD]
                    )
                ),
                times=frozen(times, np.float64),
                activations=frozen(held, np.float64),
                in_flight=flying,
                capacity=float(stages.capacity_bytes[d]),
            )
        )
    return tuple(result)


def _most(owner: Ints, change: Floats) -> dict[int, int]:
    """Return the most microbatches that each stage holds at once; all it takes it gives back."""
    if not len(owner):
        return {}
    order = np.argsort(owner, kind="stable")
    stages, first = np.unique(owner[order], return_index=True)
    most = np.maximum.reduceat(np.cumsum(change[order]), first)
    return dict(zip(stages.tolist(), most.astype(int).tolist(), strict=True))
