"""The problem of an iteration: M microbatches through a pipeline, under a schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ..common.choices import OrText, PipelineSchedule, Split, choose
from ..common.errors import InputError, quote
from ..common.quantities import check_count
from .placement_rules import NO_RULES, PlacementRules
from .schedule import GivenOrder, given_order
from .summary import ByFields
from .workload import Workload

#: Chunks per device unless the problem says otherwise, for the schedule that has them.
USUAL_CHUNKS = 2


@dataclass(frozen=True)
class Iteration(ByFields):
    """Minimise the time of one iteration: a batch of M microbatches under a schedule.

    The objective is the makespan of the plan as the simulator executes it, from the first forward
    pass to the end of the last backward pass. Every device must hold, at every moment, its
    weights, gradients and optimizer state and the activations of all microbatches in flight.

    With a contiguous split the stages form a chain S_1, …, S_P on different devices (for
    ``interleaved``: P = chunks · D stages, stage s on device s mod D): the forward pass of a
    microbatch on a stage waits for the one on the stage before, its backward pass for the one on
    the stage behind, as `torch.distributed.pipelining`, Megatron and DeepSpeed run it. With the
    other splits a device's nodes are cut into convex pieces, which wait only for what they need.

    A schedule can also be `given`: the actions of each device, in order. It says how many stages
    there are and which of them share a device; the plan, what they are and on which device.

    Parameters
    ----------
    microbatches
        M, microbatches in an iteration.
    schedule
        ``1f1b``, ``gpipe``, ``interleaved``, ``zb-h1`` or ``zb-h2``, as `make_schedule` makes it;
        or ``given``, by `actions`.
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

    Raises
    ------
    InputError
        If an option is none of its choices, options contradict each other, or the actions are no
        complete order that can be executed: with row and column.

    References
    ----------
    Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Efficient Large-Scale Language Model
    Training on GPU Clusters Using Megatron-LM", SC 2021 (1F1B, interleaved); Qi et al., "Zero
    Bubble Pipeline Parallelism", ICLR 2024 (ZB-H1, ZB-H2). To place the nodes for the makespan of
    the schedule, exactly and with a bound, is ours.

    Examples
    --------
    >>> Iteration(16, schedule="interleaved").chunks
    2
    >>> rows = ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]
    >>> Iteration(2, schedule="given", actions=tuple(rows)).devices_of(2)
    (0, 1)
    """

    microbatches: int
    schedule: OrText[PipelineSchedule] = PipelineSchedule.ONE_F_ONE_B
    split: OrText[Split] = Split.CONTIGUOUS
    chunks: int | None = None
    relayed: bool = False
    overlap: bool = False
    weight_share: float = 0.5
    placement_rules: PlacementRules = NO_RULES
    actions: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_count("microbatches", self.microbatches)
        choose(self, schedule=PipelineSchedule, split=Split)
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
        if not 0 <= self.weight_share <= 1:
            raise InputError(
                f"weight_share: {quote(self.weight_share)}; it must be a number from 0 to 1"
            )
        if self.order:
            self._check_order(self.order)
        elif self.actions:
            raise InputError("actions: only the schedule given has them; leave them out")

    def _check_order(self, order: GivenOrder) -> None:
        if order.microbatches != self.microbatches:
            raise InputError(
                f"microbatches: {self.microbatches}; the actions are of {order.microbatches}"
            )
        object.__setattr__(self, "actions", order.texts)

    @property
    def name(self) -> str:
        """What the problem is called in files and tables."""
        return "iteration"

    def summary(self) -> dict[str, object]:
        """Return the fields, of the actions how many there are."""
        facts = super().summary()
        if self.order:
            facts["actions"] = f"{sum(map(len, self.order.rows))} in {len(self.order.rows)} rows"
        return facts

    @cached_property
    def order(self) -> GivenOrder | None:
        """The schedule ``given``; None for all others."""
        return given_order(self.actions, "actions") if self.schedule == "given" else None

    @property
    def chunks_per_device(self) -> int:
        """Stages on each device of a chain; where the schedule is given, at most."""
        return self.order.most_stages if self.order else self.chunks or 1

    def devices_of(self, stages: int) -> tuple[int, ...]:
        """Return for each stage of a chain the place of its device in the order of devices."""
        if self.order:
            return self.order.device
        size = stages // self.chunks_per_device
        return tuple(s % size for s in range(stages))


def check_two_passes(workload: Workload, problem: Iteration) -> None:
    """Raise InputError unless the workload is a forward and a backward pass, or a forward one."""
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
