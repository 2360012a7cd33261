"""A plan runs: every process is one of its devices, for a number of steps."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist

from ...instances import InputError, Plan, Workload
from ...instances.pytorch.factory import Made
from ..measure.group import process_group
from .pipeline import Pipeline
from .prepare import Prepared, prepare
from .recorder import Recorder
from .recording_file import RankRecording, RunRecording, save_recording

#: Makes an optimizer of parameters.
MakeOptimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Options:
    """How a plan runs.

    Parameters
    ----------
    steps
        Batches.
    schedule, microbatches, replicas, recompute
        See `Pipeline`.
    optimizer
        ``sgd``, ``adam`` or ``adamw``, or what makes one of parameters.
    learning_rate
        Of an optimizer by name.
    device
        ``cpu`` (gloo), ``cuda`` (NCCL), or ``auto``: ``cuda`` where there is one.
    threads
        Of torch in each process; default: the cores that the process may use, shared by the
        processes on this host.
    record
        File for what every rank did and when.
    """

    steps: int = 10
    schedule: str = "1f1b"
    microbatches: int = 8
    replicas: int = 1
    recompute: bool = False
    optimizer: str | MakeOptimizer = "sgd"
    learning_rate: float = 0.01
    device: str = "auto"
    threads: int | None = None
    record: Path | None = None

    def __post_init__(self) -> None:
        for what in ("steps", "microbatches", "replicas", "threads"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise InputError(f"{what}: {value}; it must be at least 1")
        if isinstance(self.optimizer, str) and self.optimizer not in OPTIMIZERS:
            raise InputError(f"optimizer: {self.optimizer!r} is not one of {', '.join(OPTIMIZERS)}")


OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True)
class Step:
    """What a step gave: its number from 0 on, the mean loss, and the time it took."""

    number: int
    loss: float
    seconds: float


def run(
    plan: Plan | Path,
    made: Made,
    options: Options,
    *,
    workload: Workload | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> list[Step]:
    """Run a plan as one of its processes; all of them call this with the same arguments.

    `torchrun` starts them; without it, a plan for one device runs in this process alone.

    Parameters
    ----------
    made
        The model, the same numbers in it on every rank, and its microbatches: every replica of
        a step takes its own ones, in order.
    workload
        What the plan was made for; see `prepare`.
    on_step
        Called on rank 0 after every step.

    Returns
    -------
    list of Step
        As many as were asked for, or as there are microbatches.

    Raises
    ------
    InputError
        If plan, model, options and number of processes do not fit together.
    """
    if options.record is not None and workload is None:
        raise InputError("record: give the workload, too; the recording is held against it")
    prepared = prepare(plan, made.model, made.args, made.kwargs, workload)
    _alone_if_it_can_be(len(prepared.devices) * options.replicas)
    torch.set_num_threads(options.threads or _threads())
    with process_group(options.device) as device:
        pipeline = Pipeline(
            prepared,
            schedule=options.schedule,
            microbatches=options.microbatches,
            device=device,
            replicas=options.replicas,
            recompute=options.recompute,
            record=options.record is not None,
        )
        steps = _steps(pipeline, prepared, made, options, on_step)
        if pipeline.recorder is not None and options.record is not None:
            recording = _gather(pipeline, prepared, pipeline.recorder)
            if dist.get_rank() == 0:
                save_recording(recording, options.record)
    return steps


def _steps(
    pipeline: Pipeline,
    prepared: Prepared,
    made: Made,
    options: Options,
    on_step: Callable[[Step], None] | None,
) -> list[Step]:
    optimizer = _optimizer(pipeline, options) if pipeline.training else None
    begin = pipeline.replica * options.microbatches
    end = begin + options.microbatches
    if pipeline.recorder is not None:
        pipeline.recorder.start_s = _zero()
    steps: list[Step] = []
    for number in range(options.steps):
        each = list(islice(made.microbatches, options.microbatches * options.replicas))
        if len(each) < options.microbatches * options.replicas:
            break
        batch = [prepared.inputs(args, kwargs) for args, kwargs in each[begin:end]]
        dist.barrier()
        begun = time.perf_counter()
        pipeline.step(batch)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        loss = pipeline.mean_loss()
        steps.append(Step(number, loss, time.perf_counter() - begun))
        if on_step is not None and dist.get_rank() == 0:
            on_step(steps[-1])
    return steps


def _optimizer(pipeline: Pipeline, options: Options) -> torch.optim.Optimizer | None:
    trained = [p for _, p in pipeline.named_parameters() if p.requires_grad]
    if not trained:
        return None
    if isinstance(options.optimizer, str):
        kind = OPTIMIZERS[options.optimizer]
        return kind(trained, lr=options.learning_rate)
    return options.optimizer(trained)


def _alone_if_it_can_be(processes: int) -> None:
    """Set up a group of one process where torchrun did not, or say how to start."""
    if "RANK" in os.environ:
        return
    if processes > 1:
        raise InputError(
            f"the plan runs on {processes} processes; start it with: "
            f"torchrun --nproc-per-node {processes} -m stagecut run …"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")


def _threads() -> int:
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _zero() -> float:
    """Return this rank's time of the begin that all ranks share."""
    dist.barrier()
    here = (socket.gethostname(), time.perf_counter())
    everywhere: list[tuple[str, float]] = [here] * dist.get_world_size()
    dist.all_gather_object(everywhere, here)
    one_host = len({host for host, _ in everywhere}) == 1
    return everywhere[0][1] if one_host else here[1]


def _gather(pipeline: Pipeline, prepared: Prepared, recorder: Recorder) -> RunRecording:
    """Return what the devices of the first replica did; idle ones did nothing."""
    here = (dist.get_rank(), socket.gethostname(), str(pipeline.device), tuple(recorder.done))
    everywhere = [here] * dist.get_world_size()
    dist.all_gather_object(everywhere, here)
    done = {
        prepared.devices[rank]: RankRecording(prepared.devices[rank], host, device, actions)
        for rank, host, device, actions in everywhere[: len(prepared.devices)]
    }
    size = prepared.plan.cluster.size
    return RunRecording(
        prepared.workload.fingerprint,
        prepared.plan.placement,
        pipeline.schedule.name,
        pipeline.microbatches,
        tuple(done.get(d, RankRecording(d, "", "idle", ())) for d in range(size)),
    )
