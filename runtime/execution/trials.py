"""Trials of placements: timed against each other on the processes of a group.

Other load on a machine differs from minute to minute. So all placements take turns, a batch each in
every round, and the result is the median over rounds of a batch's time relative to that of the
first placement in the same round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ...instances import InputError, Plan, Workload
from ...instances.common.arrays import Floats
from ...instances.pytorch.factory import Made
from ..measure.group import process_group, rank_device, threads_per_process
from .options import RunOptions
from .prepare import split_model
from .trainer import PipelineTrainer

#: Function that times plans, each on all processes: seconds of a batch relative to the first one's.
TimePlans = Callable[[Sequence[Plan]], Floats]


def lead_trials(
    work: Callable[[TimePlans], None], made: Made, workload: Workload, *, rounds: int
) -> None:
    """Call `work` on the first of torchrun's processes; all of them run the plans that it times.

    Raises InputError if torchrun did not start this process.
    """
    if "RANK" not in os.environ:
        raise InputError(
            "reward: measured times need a process for each device; start it under torchrun "
            "--nproc-per-node DEVICES -m stagecut …"
        )

    def timed(plans: Sequence[Plan]) -> Floats:
        dist.broadcast_object_list([list(plans)], src=0)
        return relative_times(plans, made, workload, rounds)

    with process_group("auto"):
        if dist.get_rank() == 0:
            try:
                work(timed)
            finally:
                dist.broadcast_object_list([None], src=0)
            return
        told: list[Any] = [None]
        while True:
            dist.broadcast_object_list(told, src=0)
            if told[0] is None:
                break
            relative_times(told[0], made, workload, rounds)


def relative_times(plans: Sequence[Plan], made: Made, workload: Workload, rounds: int) -> Floats:
    """Return the medians over rounds, relative to the first plan; all ranks call this at once.

    Weights stay as they are: the learning rate is 0.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads_per_process())
    runs = []
    for plan in plans:
        ready = split_model(plan, made.model, made.args, made.kwargs, workload)
        options = RunOptions(steps=1, learning_rate=0.0).settled(plan, workload)
        trainer = PipelineTrainer(ready, options)
        runs.append((trainer, [ready.inputs(made.args, made.kwargs)] * trainer.per_batch))
    shape = 1 + rounds, len(plans)  # the first round is a warm-up
    seconds = torch.zeros(shape, dtype=torch.float64, device=rank_device())
    for turn in seconds:
        for i, (trainer, batch) in enumerate(runs):
            dist.barrier()
            begun = time.perf_counter()
            trainer.run(batch)
            turn[i] = time.perf_counter() - begun
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    torch.set_num_threads(before)
    relative: Floats = (seconds[1:] / seconds[1:, :1]).cpu().numpy()
    return np.median(relative, axis=0)
