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


Problem = Throughput


def _one_of(option: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{option}: {value!r} is not one of {', '.join(known)}")
