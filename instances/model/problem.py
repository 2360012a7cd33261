"""The problems one can ask for: what is minimised, and which splits are allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .check_options import count, one_of
from .errors import InputError, quote
from .iteration import Iteration
from .topology import Topology
from .units import LEAST, MOST

Split = Literal["contiguous", "per-device", "noncontiguous"]
CpuSplit = Literal["contiguous", "free"]
Pipeline = Literal["pipedream", "gpipe"]

#: Calls per accelerator; no workload has use for more.
MAX_CALLS = 1000

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
        for each other in turn (the published integer program); only edges between forward nodes
        count, so a backward node whose colour has none may be anywhere. ``noncontiguous``: no
        condition.
    cpu_split
        ``contiguous``: a CPU core's forward nodes form one piece too. ``free``: they may lie
        anywhere.
    pipeline
        ``pipedream``: max over devices of forward + backward (also 1F1B, and inference).
        ``gpipe``: max over devices of forward, plus max over devices of backward.
    overlap
        Transfers run beside compute: a load is the larger of the two, not their sum.
    relayed
        Data moves only from a stage to the next: what a later one needs is passed on by those
        between, and at every boundary that it crosses both sides pay for it; gradients the same
        way back. So runs `torch.distributed.pipelining`. For contiguous splits.
    """

    split: Split = "noncontiguous"
    cpu_split: CpuSplit = "contiguous"
    pipeline: Pipeline = "pipedream"
    overlap: bool = False
    relayed: bool = False

    def __post_init__(self) -> None:
        one_of("split", self.split, SPLITS)
        one_of("cpu_split", self.cpu_split, ("contiguous", "free"))
        one_of("pipeline", self.pipeline, ("pipedream", "gpipe"))
        if self.relayed and (self.split, self.cpu_split) != ("contiguous", "contiguous"):
            raise InputError(
                "relayed: data is passed from stage to stage, so split and cpu_split must be "
                f"contiguous, not {self.split} and {self.cpu_split}; set them"
            )

    @property
    def name(self) -> str:
        """What the problem is called in files and tables."""
        return "throughput"


Recomputation = Literal["free", "off", "forced"]
Objective = Literal["time-per-sample", "batch"]
Schedule = Literal["1f1b", "gpipe", "pipedream", "2bw"]
Optimizer = Literal["as-given", "sgd", "momentum", "adam"]
Precision = Literal["fp32", "mixed"]

RECOMPUTATIONS: tuple[Recomputation, ...] = ("free", "off", "forced")
OBJECTIVES: tuple[Objective, ...] = ("time-per-sample", "batch")
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe", "pipedream", "2bw")
OPTIMIZERS: tuple[Optimizer, ...] = ("as-given", "sgd", "momentum", "adam")
PRECISIONS: tuple[Precision, ...] = ("fp32", "mixed")


@dataclass(frozen=True)
class LayerRule:
    """What one layer may do, on top of what all may; None for no further restriction.

    Parameters
    ----------
    node
        Id of the layer.
    degrees, replicas
        Tensor and data-parallel degrees that its stage may have.
    recomputation
        Of this layer.
    """

    node: int | str
    degrees: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    recomputation: Recomputation | None = None

    def __post_init__(self) -> None:
        _degrees(f"node {self.node}: degrees", self.degrees)
        _degrees(f"node {self.node}: replicas", self.replicas)
        if self.recomputation is not None:
            one_of(f"node {self.node}: recomputation", self.recomputation, RECOMPUTATIONS)


@dataclass(frozen=True)
class Training:
    """Cut layers into pipeline stages with replicas, tensor degree and recomputation.

    A plan is a list of contiguous stages S_1 … S_r. Stage i has d_i replicas of tensor degree
    t_i, and each of its nodes one configuration of that degree. Σ d_i t_i ≤ K devices, d_i | N
    microbatches, Σ d_i ≤ N. Its time per sample is

        TPS_i = Σ p_v / d_i + 1/B · ( Σ_{cut edges e} 2 (c_e + sync_e) / d_i
                                      + Σ_v 4 (d_i − 1) w_v / (d_i N) )

    with the synchronisation of the end inside the stage, and it takes Σ (a_v y_i + b_v) bytes on
    each of its devices, with y_i = ⌈(d_i + … + d_r) / d_i⌉ microbatches in flight.

    Parameters
    ----------
    microbatches
        N, microbatches in a batch; default: the workload's.
    bandwidth
        B, bytes per second (per time unit, for a workload that does not name its unit) that a
        device sends and receives; default: the workload's.
    objective
        ``time-per-sample``: max TPS_i. ``batch``: fill and drain counted,
        Σ TPS_i + (N − 1) max TPS_i.
    degrees, replicas
        Allowed t_i and d_i; None for all. ``(1,)`` switches off, ``(4,)`` forces.
    recomputation
        ``free``; ``off`` and ``forced`` allow a layer only configurations without and with
        recomputation, wherever it has both.
    rules
        The same layer by layer.
    max_stages
        At most so many stages.
    uncut
        Edges (pairs of ids) whose ends must be in one stage.
    schedule
        What is kept per microbatch in flight. ``1f1b``: y_i activations. ``gpipe``: those of all
        N / d_i microbatches of a replica. ``pipedream``: y_i activations, and as many versions
        of the weights; there are no batches, so N does not limit d_i, and replicas synchronise
        after every round of d_i microbatches (d_i for N in TPS_i). ``2bw``: y_i activations and
        two versions of the weights.
    optimizer, precision
        State kept per byte of weights, on top of what the workload gives. ``as-given``: none.
        ``fp32``: ``sgd`` 0, ``momentum`` 1, ``adam`` 2; ``mixed`` (weights of two bytes, state
        and a copy of the weights of four): 2, 4, 6.
    server_devices, server_bandwidth
        Replicas of a stage whose d_i t_i devices fit into one server synchronise gradients at
        this bandwidth instead of `bandwidth`; stages are taken to be in different servers.

    References
    ----------
    Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization",
    NeurIPS 2021, section 3. The objective ``batch``, schedules, optimizers and servers are ours.
    """

    microbatches: int | None = None
    bandwidth: float | None = None
    objective: Objective = "time-per-sample"
    degrees: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    recomputation: Recomputation = "free"
    rules: tuple[LayerRule, ...] = ()
    max_stages: int | None = None
    uncut: tuple[tuple[int | str, int | str], ...] = ()
    schedule: Schedule = "1f1b"
    optimizer: Optimizer = "as-given"
    precision: Precision = "fp32"
    server_devices: int | None = None
    server_bandwidth: float | None = None

    def __post_init__(self) -> None:
        one_of("objective", self.objective, OBJECTIVES)
        one_of("recomputation", self.recomputation, RECOMPUTATIONS)
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("precision", self.precision, PRECISIONS)
        _degrees("degrees", self.degrees)
        _degrees("replicas", self.replicas)
        for what in ("microbatches", "max_stages", "server_devices"):
            _degrees(what, None if getattr(self, what) is None else (getattr(self, what),))
        for what in ("bandwidth", "server_bandwidth"):
            value = getattr(self, what)
            if value is not None and not LEAST <= value <= MOST:
                raise InputError(
                    f"{what}: {quote(value)}; it must be a number above 0 and at most {MOST:g}"
                )
        if (self.server_devices is None) != (self.server_bandwidth is None):
            raise InputError("server: give server_devices and server_bandwidth, or neither")

    @property
    def name(self) -> str:
        """What the problem is called in files and tables."""
        return "training"


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
        count("calls", self.calls, MAX_CALLS)

    @property
    def name(self) -> str:
        """What the problem is called in files and tables."""
        return "latency"


Mode = Literal["p2p", "allr", "both"]
Collective = Literal["ring", "cheapest"]
MapObjective = Literal["stage-time", "busiest-link"]

MODES: tuple[Mode, ...] = ("p2p", "allr", "both")
COLLECTIVES: tuple[Collective, ...] = ("ring", "cheapest")
MAP_OBJECTIVES: tuple[MapObjective, ...] = ("stage-time", "busiest-link")


@dataclass(frozen=True)
class DeviceMapping:
    """Map S stages × R replicas to the devices of a topology, least maximum first.

    ``stage-time``: the maximum is over stages; of mappings with one maximum those of least sum
    are sought. A stage of compute time t takes, for a batch of m microbatches,

        T_s = m · (t_s + P_s) + A_s

    P_s is the longest time that one of its replicas takes to send its activations to a replica
    of the next stage (by a matching), and to receive that one's gradients: the sender pays for
    activations, the receiver for gradients. A_s is the time of the all-reduce of its replicas.
    Messages take latency + bytes / bandwidth of their route. A ring all-reduce has 2(R−1) steps,
    each as long as its slowest message of bytes/R. Messages are priced one by one, as if nothing
    else were sent.

    ``busiest-link``: the maximum is over links and their two directions, of the seconds per batch
    that all messages over it take together; all-reduces count as rings. So replicas that share a
    network card share its bandwidth.

    The stages are given, by a balanced partition of the workload or by the plan to start from:
    bounds and "optimal" speak of their mapping, not of other partitions.

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
        hierarchical all-reduce (`runtime.verify.mapping`). Default: ``cheapest``, and ``ring`` for
        the busiest link, where all-reduces count as rings.
    objective
        ``stage-time`` or ``busiest-link``.
    overlap
        Messages run beside compute: T_s = max(m · t_s, m · P_s + A_s). Of stage times only.

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
    collective: Collective | None = None
    objective: MapObjective = "stage-time"
    overlap: bool = False

    def __post_init__(self) -> None:
        one_of("mode", self.mode, MODES)
        one_of("objective", self.objective, MAP_OBJECTIVES)
        of_links = self.objective == "busiest-link"
        if self.collective is None:
            object.__setattr__(self, "collective", "ring" if of_links else "cheapest")
        one_of("collective", self.collective, COLLECTIVES)
        if of_links and self.overlap:
            raise InputError("overlap: the busiest link counts no compute; leave overlap out")
        if of_links and self.collective != "ring":
            raise InputError(
                f"collective: {self.collective!r}; for the busiest link all-reduces count as "
                "rings: leave collective out"
            )
        for what in ("stages", "replicas", "microbatches"):
            count(what, getattr(self, what))
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


Problem = Throughput | Iteration | Latency | Training | DeviceMapping


def _degrees(option: str, values: tuple[int, ...] | None) -> None:
    for value in values or ():
        count(option, value)
    if values == ():
        raise InputError(f"{option}: empty; allow at least one, or give None for all")
