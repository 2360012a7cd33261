"""The problems one can ask for: what is minimised, and which splits are allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import InputError

Split = Literal["contiguous", "per-device", "noncontiguous"]
CpuSplit = Literal["contiguous", "free"]
Pipeline = Literal["pipedream", "gpipe"]

SPLITS: tuple[Split, ...] = ("contiguous", "per-device", "noncontiguous")


@dataclass(frozen=True)
class Throughput:
    """Minimise the max-load: the time per sample of a pipeline that never waits.

    Parameters
    ----------
    split
        ``contiguous``: the forward nodes of each device form one piece, and the pieces can be
        executed one after the other (the ideal definition: the quotient graph is acyclic).
        ``per-device``: each accelerator's forward nodes are convex, but two devices may wait
        for each other in turn (the published integer program). ``noncontiguous``: no condition.
    cpu_split
        ``contiguous``: a CPU core's forward nodes form one piece too. ``free``: they may lie
        anywhere.
    pipeline
        ``pipedream``: max over devices of forward + backward (also 1F1B, and inference).
        ``gpipe``: max over devices of forward, plus max over devices of backward.
    overlap
        Transfers run beside compute: a load is the larger of the two, not their sum.
    """

    split: Split = "noncontiguous"
    cpu_split: CpuSplit = "contiguous"
    pipeline: Pipeline = "pipedream"
    overlap: bool = False

    def __post_init__(self) -> None:
        _one_of("split", self.split, SPLITS)
        _one_of("cpu_split", self.cpu_split, ("contiguous", "free"))
        _one_of("pipeline", self.pipeline, ("pipedream", "gpipe"))

    @property
    def name(self) -> str:
        """What the problem is called in files and tables."""
        return "throughput"


@dataclass(frozen=True)
class Latency:
    """Minimise the time of one request that has all devices to itself.

    Each accelerator runs at most `calls` calls, one after the other; a call is a contiguous set
    of nodes that waits for all its inputs, moves them in, computes, and moves its outputs out;
    its results appear when the whole call ends, and what passes from one call to the next goes
    through host memory, on one accelerator too. Devices of a host kind are an unlimited pool:
    wherever there is at least one, each node may start on it as soon as its inputs are there,
    and how many there are does not matter. A backward node is a node like any other.

    Parameters
    ----------
    calls
        Calls per accelerator, q in the source; 1 makes the split contiguous.

    References
    ----------
    Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators",
    NeurIPS 2020, section 4 and appendix.
    """

    calls: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.calls, bool) or not isinstance(self.calls, int) or self.calls < 1:
            raise InputError(f"calls: {self.calls!r}; it must be a whole number of at least 1")

    @property
    def name(self) -> str:
        """What the problem is called in files and tables."""
        return "latency"


Problem = Throughput | Latency


def _one_of(option: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{option}: {value!r} is not one of {', '.join(known)}")
