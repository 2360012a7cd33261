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


Solution = Placement
