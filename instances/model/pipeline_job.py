"""The problem of a pipeline: schedule, configurations of layers, and memory.

A job is either a *stream*, whose microbatches follow each other without end, or one *iteration* of
M microbatches under a schedule. A field of only one of the two is refused in the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar, TypeGuard

from ..common.choices import (
    InFlight,
    Optimizer,
    OrText,
    PipelineSchedule,
    Precision,
    Recomputation,
    Split,
    choose,
)
from ..common.errors import InputError, quote
from ..common.units import LARGEST, SMALLEST, check_count, check_counts
from .cluster import number
from .placement_rules import NO_RULES, PlacementRules
from .schedule import GivenOrder, given_order
from .summary import ByFields
from .workload import Workload

#: Chunks per device unless the problem says otherwise, for the schedule that has them.
USUAL_CHUNKS = 2

#: Fields that only a stream has, and those that only an iteration has.
OF_STREAMS = (
    "in_flight", "bandwidth", "degrees", "replicas", "recomputation", "rules", "uncut",
    "optimizer", "precision", "server_devices", "server_bandwidth",
)  # fmt: skip
OF_ITERATIONS = ("split", "chunks", "relayed", "overlap", "weight_share", "actions")


@dataclass(frozen=True)
class LayerRule:
    """Restriction of one layer's choices, in addition to those of all layers; None for no limit.

    Parameters
    ----------
    node
        Id of the layer.
    degrees, replicas
        Tensor and data-parallel degrees that its stage may have.
    recomputation
        Recomputation that this layer may have.

    Raises
    ------
    InputError
        If a degree is no whole number of at least 1, or nothing is allowed.

    Examples
    --------
    >>> import stagecut
    >>> rule = stagecut.instances.LayerRule("embedding", degrees=(1,), recomputation="off")
    >>> stagecut.PipelineJob(rules=(rule,)).rules[0].recomputation
    'off'
    """

    node: int | str
    degrees: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    recomputation: OrText[Recomputation] | None = None

    def __post_init__(self) -> None:
        check_counts(f"node {self.node}: degrees", self.degrees)
        check_counts(f"node {self.node}: replicas", self.replicas)
        if self.recomputation is not None:
            where = f"node {self.node}: recomputation"
            object.__setattr__(self, "recomputation", Recomputation.of(where, self.recomputation))


@dataclass(frozen=True)
class PipelineJob(ByFields):
    """Cut a model into the stages of a pipeline and minimise the time of its training.

    A `stream` is without end (M → ∞). Its stages S_1 … S_r are contiguous; stage i has d_i
    replicas of tensor degree t_i, and each of its nodes one configuration of that degree:
    Σ d_i t_i ≤ K devices, d_i | N microbatches of a batch, Σ d_i ≤ N. The objective is the time
    per microbatch, max TPS_i with

        TPS_i = Σ p_v / d_i + 1/B · ( Σ_{cut edges e} 2 (c_e + sync_e) / d_i
                                      + Σ_v 4 (d_i − 1) w_v / (d_i N) )

    with the synchronisation of the end inside the stage; it takes Σ (a_v y_i + b_v) bytes on
    each of its devices, with y_i = ⌈(d_i + … + d_r) / d_i⌉ microbatches in flight.

    With any other schedule the job is an iteration: the objective is the makespan of M
    microbatches as the simulator executes the plan, from the first forward pass to the end of the
    last backward pass. Every device must hold, at every moment, its weights, gradients and
    optimizer state and the activations of all microbatches in flight. With a contiguous split the
    stages form a chain S_1, …, S_P on different devices (for ``interleaved``: P = chunks · D
    stages, stage s on device s mod D): the forward pass of a microbatch on a stage waits for the
    one on the stage before, its backward pass for the one on the stage behind, as
    `torch.distributed.pipelining`, Megatron and DeepSpeed run it. With the other splits a
    device's nodes are cut into convex pieces, which wait only for what they need.

    Parameters
    ----------
    microbatches
        M of an iteration; of a stream N, in a batch, by default the workload's.
    schedule
        ``stream``; or ``1f1b``, ``gpipe``, ``interleaved``, ``zb-h1`` or ``zb-h2``, as
        `make_schedule` makes it; or ``given``, by `actions`, which state the number of stages and
        their devices. Default: ``stream`` for a workload with layer
        configurations, else ``1f1b``.
    split
        ``contiguous``: a chain of stages. ``per-device``: each device's forward nodes are convex.
        ``noncontiguous``: no condition. ``interleaved`` and ``given`` are for contiguous splits.
    chunks
        Stages per device of ``interleaved``, v in its source; default: 2. 1 for all others.
    relayed
        Data moves only from a stage to the next, as in `Throughput`.
    overlap
        Transfers run beside compute, on a copy engine of each device.
    weight_share
        The part of a backward pass that computes gradients of weights, where a schedule splits
        it.
    placement_rules
        Pins and other rules of the user's own; their numbers are stages if the split is
        contiguous, else devices.
    actions
        Of ``given``, a row of cells such as ``0F0,0F1,0B0,0B1`` for each device, as in the CSV of
        computations of `torch.distributed.pipelining`: stage, kind (F; B, or I and W) and
        microbatch. Empty cells are left out.
    in_flight
        What a stream keeps in memory. ``1f1b``: the activations of y_i microbatches. ``gpipe``:
        those of all N / d_i microbatches of a replica. ``pipedream``: y_i activations, and as many
        versions of the weights; there are no batches, so N does not limit d_i, and replicas
        synchronise after every round of d_i microbatches (d_i for N in TPS_i). ``2bw``: y_i
        activations and two versions of the weights.
    bandwidth
        B, bytes per second (per time unit, for a workload that does not name its unit) that a
        device of a stream sends and receives; default: the workload's.
    degrees, replicas
        Allowed t_i and d_i; None for all. ``(1,)`` switches off, ``(4,)`` forces.
    recomputation
        ``free``; ``off`` and ``forced`` allow a layer only configurations without and with
        recomputation, wherever it has both.
    rules
        Such restrictions of single layers.
    uncut
        Edges (pairs of ids) whose ends must be in one stage.
    optimizer, precision
        State kept per byte of weights, on top of what the workload gives. ``as-given``: none.
        ``fp32``: ``sgd`` 0, ``momentum`` 1, ``adam`` 2; ``mixed`` (weights of two bytes, state
        and a copy of the weights of four): 2, 4, 6.
    server_devices, server_bandwidth
        Replicas of a stage whose d_i t_i devices fit into one server synchronise gradients at
        this bandwidth instead of `bandwidth`; stages are taken to be in different servers.

    Raises
    ------
    InputError
        If an option is none of its choices, a number is out of range, options contradict each
        other, or the actions are no complete order that can be executed: with row and column.

    References
    ----------
    Streams: Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN
    Parallelization", NeurIPS 2021, section 3; what is in flight, optimizers and servers are ours.
    Schedules: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Efficient Large-Scale
    Language Model Training on GPU Clusters Using Megatron-LM", SC 2021 (1F1B, interleaved); Qi et
    al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (ZB-H1, ZB-H2). To place the nodes for the
    makespan of the schedule, exactly and with a bound, is ours.

    Examples
    --------
    >>> PipelineJob(16, schedule="interleaved").chunks
    2
    >>> rows = ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]
    >>> PipelineJob(2, schedule="given", actions=tuple(rows)).devices_of(2)
    (0, 1)
    >>> PipelineJob(schedule="stream", in_flight="2bw", optimizer="adam").precision
    'fp32'
    """

    name: ClassVar[str] = "pipeline"
    microbatches: int | None = None
    schedule: OrText[PipelineSchedule] | None = None
    split: OrText[Split] = Split.CONTIGUOUS
    chunks: int | None = None
    relayed: bool = False
    overlap: bool = False
    weight_share: float = 0.5
    placement_rules: PlacementRules = NO_RULES
    actions: tuple[str, ...] = field(default=(), repr=False)
    in_flight: OrText[InFlight] = InFlight.ONE_F_ONE_B
    bandwidth: float | None = None
    degrees: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    recomputation: OrText[Recomputation] = Recomputation.FREE
    rules: tuple[LayerRule, ...] = ()
    uncut: tuple[tuple[int | str, int | str], ...] = ()
    optimizer: OrText[Optimizer] = Optimizer.AS_GIVEN
    precision: OrText[Precision] = Precision.FP32
    server_devices: int | None = None
    server_bandwidth: float | None = None

    def __post_init__(self) -> None:
        if self.schedule is not None:
            choose(self, schedule=PipelineSchedule)
        choose(
            self,
            split=Split,
            in_flight=InFlight,
            recomputation=Recomputation,
            optimizer=Optimizer,
            precision=Precision,
        )
        for what in ("microbatches", "server_devices"):
            if getattr(self, what) is not None:
                check_count(what, getattr(self, what))
        check_counts("degrees", self.degrees)
        check_counts("replicas", self.replicas)
        for what in ("bandwidth", "server_bandwidth"):
            value = getattr(self, what)
            if value is not None and not SMALLEST <= number(value, what) <= LARGEST:
                raise InputError(
                    f"{what}: {quote(value)}; it must be a number above 0 and at most {LARGEST:g}"
                )
        if (self.server_devices is None) != (self.server_bandwidth is None):
            raise InputError("server: give server_devices and server_bandwidth, or neither")
        if not 0 <= number(self.weight_share, "weight_share") <= 1:
            raise InputError(
                f"weight_share: {quote(self.weight_share)}; it must be a number from 0 to 1"
            )
        if self.schedule is not None:
            self._check_fields()
            if self.schedule != PipelineSchedule.STREAM:
                self._check_iteration()

    def _check_fields(self) -> None:
        """Raise InputError if a field belongs to the other schedules."""
        streams = self.schedule == PipelineSchedule.STREAM
        for item in fields(self):
            if item.name not in (OF_ITERATIONS if streams else OF_STREAMS):
                continue
            if getattr(self, item.name) != item.default:
                whose = "a schedule of M microbatches" if streams else "the schedule stream"
                raise InputError(
                    f"{item.name}: it belongs to {whose}, and the schedule is {self.schedule}; "
                    "leave it out, or choose another schedule"
                )

    def _check_iteration(self) -> None:
        if self.microbatches is None:
            raise InputError("microbatches: say how many an iteration has")
        interleaved = self.schedule == "interleaved"
        if self.chunks is None:
            object.__setattr__(self, "chunks", USUAL_CHUNKS if interleaved else 1)
        check_count("chunks", self.chunks)
        if not interleaved and self.chunks != 1:
            raise InputError(
                f"chunks: {self.chunks}; only the schedule interleaved has several stages on a "
                "device: leave chunks out, or set schedule to interleaved"
            )
        given = self.schedule == "given"
        if self.split != "contiguous" and (interleaved or given or self.relayed):
            what = f"schedule {self.schedule}" if interleaved or given else "relayed"
            raise InputError(f"{what}: it needs a chain of stages; set split to contiguous")
        if self.order:
            if self.order.microbatches != self.microbatches:
                raise InputError(
                    f"microbatches: {self.microbatches}; the actions are of "
                    f"{self.order.microbatches}"
                )
            object.__setattr__(self, "actions", self.order.texts)
        elif self.actions:
            raise InputError("actions: only the schedule given has them; leave them out")

    def summary(self) -> dict[str, object]:
        """Return the fields of its schedule, with the number of actions."""
        facts = super().summary()
        others = OF_ITERATIONS if self.schedule == PipelineSchedule.STREAM else OF_STREAMS
        facts = {what: value for what, value in facts.items() if what not in others}
        if self.order:
            facts["actions"] = f"{sum(map(len, self.order.rows))} in {len(self.order.rows)} rows"
        return facts

    @property
    def batch(self) -> int:
        """Microbatches M of an iteration."""
        if self.microbatches is None:
            raise InputError("microbatches: say how many an iteration has")
        return self.microbatches

    @property
    def schedule_name(self) -> PipelineSchedule:
        """The schedule; by default ``1f1b``."""
        return PipelineSchedule(self.schedule or PipelineSchedule.ONE_F_ONE_B)

    @cached_property
    def order(self) -> GivenOrder | None:
        """The schedule ``given``; None for all others."""
        return given_order(self.actions, "actions") if self.schedule == "given" else None

    @property
    def chunks_per_device(self) -> int:
        """Stages on each device of a chain; where the schedule is given, at most."""
        return self.order.most_stages if self.order else self.chunks or 1

    def devices_of(self, stages: int) -> tuple[int, ...]:
        """Return for each stage of a chain the position of its device in the order of devices."""
        if self.order:
            return self.order.device
        size = stages // self.chunks_per_device
        return tuple(s % size for s in range(stages))

    def for_workload(self, workload: Workload) -> PipelineJob:
        """Return the job with the workload's usual schedule, if it has none.

        Raises
        ------
        InputError
            If the schedule needs what the workload does not have, or a rule names an unknown node.
        """
        layered = workload.layers is not None
        usual = PipelineSchedule.STREAM if layered else PipelineSchedule.ONE_F_ONE_B
        job = self if self.schedule is not None else replace(self, schedule=usual)
        if layered and is_iteration(job):
            raise InputError(
                f"schedule: {job.schedule}; {workload.name} has layer configurations, which say "
                "no forward and backward pass: set schedule to stream"
            )
        if is_iteration(job):
            check_two_passes(workload, job)
        named = [("rules", rule.node) for rule in self.rules]
        for what, node in (*named, *(("uncut", node) for pair in self.uncut for node in pair)):
            if node not in workload.index:
                raise InputError(
                    f"{what}: {workload.name} has no node {quote(node)}; use the file's ids"
                )
        return job


def is_stream(problem: object) -> TypeGuard[PipelineJob]:
    """Return whether a problem is a pipeline without end; False if its schedule is not set.

    Examples
    --------
    >>> is_stream(PipelineJob(schedule="stream")), is_stream(PipelineJob(4, "1f1b"))
    (True, False)
    """
    return isinstance(problem, PipelineJob) and problem.schedule == PipelineSchedule.STREAM


def is_iteration(problem: object) -> TypeGuard[PipelineJob]:
    """Return whether a problem is a pipeline of M microbatches; False if its schedule is not set.

    Examples
    --------
    >>> is_iteration(PipelineJob(4, "1f1b")), is_iteration(PipelineJob(4))
    (True, False)
    """
    return isinstance(problem, PipelineJob) and problem.schedule not in (
        None,
        PipelineSchedule.STREAM,
    )


def check_two_passes(workload: Workload, problem: PipelineJob) -> None:
    """Raise InputError unless the workload has the forward and backward pass of the schedule."""
    back_to_front = workload.backward[workload.edges] @ [2, -1] == 2
    if back_to_front.any():
        u, v = workload.edges[int(back_to_front.argmax())].tolist()
        raise InputError(
            f"{workload.name}: edge {workload.ids[u]} → {workload.ids[v]} leads from a backward "
            "node to a forward node; such a graph cannot be run in two passes"
        )
    trains = bool(workload.backward.any())
    if problem.chunks_per_device > 1 and not problem.order and not trains:
        raise InputError(
            f"{workload.name}: {problem.schedule} is for training, and it has no backward pass; "
            "use 1f1b"
        )
    if problem.order and problem.order.trains != trains:
        has, lacks = ("a", "no") if trains else ("no", "some")
        raise InputError(
            f"{workload.name}: it has {has} backward pass, and the actions have {lacks} B, I or W"
        )
