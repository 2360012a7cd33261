"""Problems: the objective to minimise and the splits allowed, one dataclass each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..common.choices import (
    Collective,
    CpuSplit,
    MappingMode,
    MappingObjective,
    OrText,
    Pipeline,
    ShardingObjective,
    Split,
    choose,
)
from ..common.errors import InputError, quote
from ..common.units import check_count, show_count
from .cluster import Cluster
from .costs import price
from .pipeline_job import PipelineJob
from .placement_rules import NO_RULES, PlacementRules
from .sharding import Sharding
from .summary import ByFields
from .topology import Topology
from .workload import Workload

#: Most calls per accelerator; no workload benefits from more.
MAX_CALLS = 1000


@dataclass(frozen=True)
class Throughput(ByFields):
    """Minimise the max-load: the time per microbatch of a pipeline that never waits.

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
        Data moves only from a stage to the next: data for a later stage passes through those
        between, and both sides of every boundary that it crosses pay for it; gradients take the
        same way back. `torch.distributed.pipelining` runs so. For contiguous splits.
    placement_rules
        Pins and other rules of the user's own; their numbers are devices.

    Raises
    ------
    InputError
        If an option is none of its choices, or `relayed` is set for a split that is not contiguous.

    References
    ----------
    Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators",
    NeurIPS 2020, section 5 and appendix. `relayed` and links are ours.

    Examples
    --------
    >>> problem = Throughput(split="contiguous", overlap=True)
    >>> problem.split is Split.CONTIGUOUS
    True
    """

    name: ClassVar[str] = "throughput"
    split: OrText[Split] = Split.NONCONTIGUOUS
    cpu_split: OrText[CpuSplit] = CpuSplit.CONTIGUOUS
    pipeline: OrText[Pipeline] = Pipeline.PIPEDREAM
    overlap: bool = False
    relayed: bool = False
    placement_rules: PlacementRules = NO_RULES

    def __post_init__(self) -> None:
        choose(self, split=Split, cpu_split=CpuSplit, pipeline=Pipeline)
        if self.relayed and (self.split, self.cpu_split) != ("contiguous", "contiguous"):
            raise InputError(
                "relayed: data is passed from stage to stage, so split and cpu_split must be "
                f"contiguous, not {self.split} and {self.cpu_split}; set them"
            )


@dataclass(frozen=True)
class Latency(ByFields):
    """Minimise the time of one request that has all devices to itself.

    Each accelerator runs at most `calls` calls, one after the other; a call is a contiguous set
    of nodes that waits for all its inputs, moves them in, computes, and moves its outputs out;
    its results appear when the whole call ends, and what passes from one call to the next goes
    through host memory, on one accelerator too. Devices of a host kind are an unlimited pool:
    if there is at least one, each node may start on it as soon as its inputs are there, whatever
    their number. Backward nodes are treated like any others.

    Parameters
    ----------
    calls
        Calls per accelerator, q in the source; 1 makes the split contiguous.
    placement_rules
        Pins and other rules of the user's own; their numbers are devices, and those of the pool
        are one.

    Raises
    ------
    InputError
        If `calls` is no whole number of at least 1.

    References
    ----------
    Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators",
    NeurIPS 2020, section 4 and appendix.

    Examples
    --------
    >>> Latency(calls=2).name
    'latency'
    """

    name: ClassVar[str] = "latency"
    calls: int = 1
    placement_rules: PlacementRules = NO_RULES

    def __post_init__(self) -> None:
        check_count("calls", self.calls, MAX_CALLS)


@dataclass(frozen=True)
class DeviceMapping(ByFields):
    """Map S stages × R replicas to the devices of a topology, and minimise a maximum.

    ``stage-time``: the maximum is over stages; of mappings with one maximum those of least sum
    are sought. A stage of compute time t takes, for a batch of m microbatches,

        T_s = m · (t_s + P_s) + A_s

    P_s is the longest time that one of its replicas takes to send its activations to a replica
    of the next stage (by a matching), and to receive that one's gradients: the sender pays for
    activations, the receiver for gradients. A_s is the time of the all-reduce of its replicas.
    Messages take latency + bytes / bandwidth of their route. A ring all-reduce has 2(R−1) steps,
    each as long as its slowest message of bytes/R. Messages are priced one by one, as if nothing
    else were sent. t is that of the slowest replica, if devices are unlike (`DeviceKind.slowdown`).

    ``busiest-link``: the maximum is over links and their two directions, of the seconds per batch
    that all messages over it take together; all-reduces count as rings. So replicas that share a
    network card share its bandwidth.

    The stages are given, by a balanced partition of the workload or by the plan to start from:
    bounds and "optimal" speak of their mapping, not of other partitions.

    Parameters
    ----------
    topology
        The network of devices to which the stages are mapped.
    stages, replicas
        S and R; S·R devices are used, the others are spare.
    mode
        ``both`` counts P and A, ``p2p`` P alone, ``allr`` A alone.
    microbatches
        Microbatches m of a batch.
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

    Raises
    ------
    InputError
        If an option is none of its choices, options contradict each other, or the topology has
        too few devices.

    References
    ----------
    Parmesan's min–max device mapping, its instantiations p2p and allr. Batches, gradients,
    matching and ring as part of the answer, and the collectives are ours; m = 1 without
    gradients and with rings is the published tables' form.

    Examples
    --------
    >>> import stagecut
    >>> problem = stagecut.DeviceMapping(stagecut.topology("ring:8"), stages=4, replicas=2)
    >>> problem.mode, problem.collective
    ('both', 'cheapest')
    """

    name: ClassVar[str] = "mapping"
    topology: Topology
    stages: int
    replicas: int = 1
    mode: OrText[MappingMode] = MappingMode.BOTH
    microbatches: int = 1
    gradients: bool = True
    collective: OrText[Collective] | None = None
    objective: OrText[MappingObjective] = MappingObjective.STAGE_TIME
    overlap: bool = False

    def __post_init__(self) -> None:
        of_links = self.objective == MappingObjective.BUSIEST_LINK
        if self.collective is None:
            default = Collective.RING if of_links else Collective.CHEAPEST
            object.__setattr__(self, "collective", default)
        choose(self, mode=MappingMode, objective=MappingObjective, collective=Collective)
        if of_links and self.overlap:
            raise InputError("overlap: the busiest link counts no compute; leave overlap out")
        if of_links and self.collective != "ring":
            raise InputError(
                f"collective: {self.collective!r}; for the busiest link all-reduces count as "
                "rings: leave collective out"
            )
        for what in ("stages", "replicas", "microbatches"):
            check_count(what, getattr(self, what))
        if not isinstance(self.topology, Topology):
            raise InputError(
                f"topology: {quote(self.topology)}; give a Topology, as topology makes"
            )
        usable, used = len(self.topology.usable), self.stages * self.replicas
        if used > usable:
            raise InputError(
                f"{show_count(self.stages, 'stage')} × {show_count(self.replicas, 'replica')} need "
                f"{used} devices; "
                f"{self.topology.name} has {usable} to use: take fewer, or a larger topology"
            )


Problem = Throughput | PipelineJob | Latency | DeviceMapping | Sharding


def usual_problem(workload: Workload) -> str:
    """Return the name of the default problem of a workload.

    Examples
    --------
    >>> import stagecut
    >>> usual_problem(stagecut.load("gpt2-xl"))
    'throughput'
    """
    if workload.layers is not None:
        return "pipeline"
    return "throughput" if workload.program is None else "sharding"


def suggested_cluster(workload: Workload, problem: str) -> Cluster | None:
    """Return the cluster that a workload's file suggests, for a problem of this name.

    For a pipeline, CPUs are left out, unless there is nothing else or some node needs them: nobody
    wants a slow stage on a CPU because memory is short, unless they ask for CPUs.
    """
    cluster = workload.cluster
    if cluster is None or problem != "pipeline" or cluster.without_hosts() == cluster:
        return cluster
    compute = price(workload, cluster.without_hosts()).compute
    able = [i for i, kind in enumerate(cluster.kinds) if not kind.host and kind.count]
    supported = np.isfinite(compute[able]).any(axis=0).all()
    return cluster.without_hosts() if supported else cluster


def objective_unit(problem: Problem, time_unit: str) -> str:
    """Return the unit of a problem's objective: that of time, or "unspecified" for `distpar`."""
    counts = isinstance(problem, Sharding) and problem.objective == ShardingObjective.DISTPAR
    return "unspecified" if counts else time_unit


def names_stages(problem: Problem) -> bool:
    """Whether a problem's placement rules number stages instead of devices."""
    return isinstance(problem, PipelineJob) and problem.split == Split.CONTIGUOUS
