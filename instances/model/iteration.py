"""The problem of an iteration: M microbatches through a pipeline, under a schedule."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.choices import OrText, PipelineSchedule, Split, choose
from ..common.errors import InputError, quote
from ..common.options import check_count
from .placement_rules import NO_RULES, PlacementRules
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

    Parameters
    ----------
    microbatches
        M, microbatches in an iteration.
    schedule
        ``1f1b``, ``gpipe``, ``interleaved``, ``zb-h1`` or ``zb-h2``, as `make_schedule` makes it.
    split
        ``contiguous``: a chain of stages. ``per-device``: each device's forward nodes are convex.
        ``noncontiguous``: no condition. ``interleaved`` is for contiguous splits.
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

    Raises
    ------
    InputError
        If an option is none of its choices, or options contradict each other.

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
    """

    microbatches: int
    schedule: OrText[PipelineSchedule] = PipelineSchedule.ONE_F_ONE_B
    split: OrText[Split] = Split.CONTIGUOUS
    chunks: int | None = None
    relayed: bool = False
    overlap: bool = False
    weight_share: float = 0.5
    placement_rules: PlacementRules = NO_RULES

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
        if self.split != "contiguous" and (interleaved or self.relayed):
            what = "schedule interleaved" if interleaved else "relayed"
            raise InputError(f"{what}: it needs a chain of stages; set split to contiguous")
        if not 0 <= self.weight_share <= 1:
            raise InputError(
                f"weight_share: {quote(self.weight_share)}; it must be a number from 0 to 1"
            )

    @property
    def name(self) -> str:
        """What the problem is called in files and tables."""
        return "iteration"

    @property
    def chunks_per_device(self) -> int:
        """Stages on each device of a chain."""
        return self.chunks or 1


def check_two_passes(workload: Workload, problem: Iteration) -> None:
    """Raise InputError unless the workload is a forward and a backward pass, or a forward one."""
    back_to_front = workload.backward[workload.edges] @ [2, -1] == 2
    if back_to_front.any():
        u, v = workload.edges[int(back_to_front.argmax())].tolist()
        raise InputError(
            f"{workload.name}: edge {workload.ids[u]} → {workload.ids[v]} leads from a backward "
            "node to a forward node; such a graph cannot be run in two passes"
        )
    if problem.chunks_per_device > 1 and not workload.backward.any():
        raise InputError(
            f"{workload.name}: {problem.schedule} is for training, and it has no backward pass; "
            "use 1f1b"
        )
