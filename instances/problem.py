"""The problems one can ask for: what is minimised, and which splits are allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import InputError
from .topologies import Topology

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


Mode = Literal["p2p", "allr", "both"]
Collective = Literal["ring", "cheapest"]

MODES: tuple[Mode, ...] = ("p2p", "allr", "both")


@dataclass(frozen=True)
class Mapping:
    """Map S stages × R replicas to the devices of a topology: least maximum stage time.

    A stage of compute time t takes, for a batch of m microbatches,

        T_s = m · (t_s + P_s) + A_s

    P_s is the longest time that one of its replicas takes to send its activations to a replica
    of the next stage (by a matching), and to receive that one's gradients: the sender pays for
    activations, the receiver for gradients. A_s is the time of the all-reduce of its replicas.
    Messages take latency + bytes / bandwidth of their route. A ring all-reduce has 2(R−1) steps,
    each as long as its slowest message of bytes/R.

    Parameters
    ----------
    topology
        Where to.
    stages, replicas
        S and R; S·R devices are used, the others are spare.
    mode
        ``p2p`` counts P alone, ``allr`` A alone, ``both`` both.
    microbatches
        m.
    gradients
        Whether gradients are sent back; without them P is the time of the activations alone.
    collective
        ``ring``: A is a ring's time. ``cheapest``: the least of ring, binary tree and
        hierarchical all-reduce (`runtime.check_mapping`).

    References
    ----------
    Parmesan's min–max device mapping, its instantiations p2p and allr. Batches, gradients,
    matching and ring as part of the answer, and the collectives are ours; m = 1 without
    gradients and with rings is the published tables' form.
    """

    topology: Topology
    stages: int
    replicas: int
    mode: Mode = "p2p"
    microbatches: int = 1
    gradients: bool = True
    collective: Collective = "cheapest"

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, MODES)
        _one_of("collective", self.collective, ("ring", "cheapest"))
        for what in ("stages", "replicas", "microbatches"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{what}: {value!r}; it must be a whole number of at least 1")
        usable, used = len(self.topology.usable), self.stages * self.replicas
        if used > usable:
            raise InputError(
                f"{self.stages} stages × {self.replicas} replicas need {used} devices; "
                f"{self.topology.name} has {usable} to use: take fewer, or a larger topology"
            )

    @property
    def name(self) -> str:
        """What the problem is called in files and tables."""
        return "mapping"


Problem = Throughput | Mapping


def _one_of(option: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{option}: {value!r} is not one of {', '.join(known)}")
