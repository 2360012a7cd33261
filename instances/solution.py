"""What a plan decides, by problem: every solver offers one of these, the verifier judges it."""

from __future__ import annotations

from dataclasses import dataclass

from .arrays import Ints, frozen


@dataclass(frozen=True, eq=False)
class Placement:
    """Solution of a throughput problem.

    Parameters
    ----------
    device
        Shape (n,): number of the device of each node.
    """

    device: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", frozen(self.device, "int64"))


@dataclass(frozen=True, eq=False)
class Mapped:
    """Solution of a mapping problem.

    Parameters
    ----------
    stage
        Shape (n,): stage of each node.
    slots
        Shape (S, R): device of each replica, a stage's replicas in the order of their ring.
    sends_to
        Shape (S−1, R): position, in the next stage's row of `slots`, of the replica to which
        each replica sends.
    """

    stage: Ints
    slots: Ints
    sends_to: Ints

    def __post_init__(self) -> None:
        for key in ("stage", "slots", "sends_to"):
            object.__setattr__(self, key, frozen(getattr(self, key), "int64"))

    @property
    def device(self) -> Ints:
        """Shape (n,): first device of each node's stage."""
        first: Ints = self.slots[self.stage, 0]
        return first


Solution = Placement | Mapped
