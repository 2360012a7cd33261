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
class Calls:
    """Solution of a latency problem.

    Parameters
    ----------
    device
        Shape (n,): number of the device of each node; for the pool of CPUs any device of its
        kind, by custom the first.
    call
        Shape (n,): number of the node's call on its accelerator, in the order in which the calls
        run; −1 for nodes on CPUs.
    """

    device: Ints
    call: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", frozen(self.device, "int64"))
        object.__setattr__(self, "call", frozen(self.call, "int64"))


Solution = Placement | Calls
