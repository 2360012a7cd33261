"""Training of jobs: steps, checkpoints that any layout resumes, tokens and models of plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....instances import InputError
from ....instances.common.arrays import Ints
from ....instances.costs.layout import Layout
from ....instances.formats.problem_toml import to_plain
from ....instances.formats.writing import json_text, write_whole
from ....instances.job.launchers import undivided
from ....instances.job.plan import JobPlan
from ....instances.pytorch.factory import call_factory
from ..checkpoint import restore, save
from ..checkpoint_folder import read_checkpoint
from ..guard.failures import Guard, guarded
from ..guard.identity import layout_hash
from ..options import MakeOptimizer, RunOptions, StepResult
from ..steps import RankTraining, joined, take_steps
from .measured import MeasuredStep, measured_step
from .parallelize import ParallelizePlan, module_of
from .running import RunningJob
from .transformer import transformer

#: Function that returns a model, the same on every rank, and how it is divided.
MakeJob = Callable[[], tuple[nn.Module, ParallelizePlan]]
_ONE_STEP = "report, record: the first step does more than the others; take at least two"
#: Options of plans of pieces that jobs have from their layout.
_PLANNED = ("microbatches", "replicas", "recompute")
#: Types of the numbers in a file of tokens without a header, by its ending.
_RAW = {".bin": np.uint16, ".u32": np.uint32}


@dataclass(frozen=True)
class JobRun:
    """Result of a training job: mean loss of each step's batch, and norm of its gradients.

    `norms` are those before clipping, empty without; `measured` has the last step by term, of each
    rank, if it was asked for.

    Examples
    --------
    >>> JobRun((2.5, 2.25)).losses[-1]
    2.25
    """

    losses: tuple[float, ...]
    norms: tuple[float, ...] = ()
    measured: tuple[MeasuredStep, ...] = ()


def run_job(
    make_model: Callable[[], nn.Module],
    plan: ParallelizePlan,
    layout: Layout,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    optimizer: str | MakeOptimizer,
    on_step: Callable[[StepResult], None] | None = None,
    **options: Any,
) -> JobRun:
    """Train a model as one of a layout's processes; all of them call this with the same arguments.

    Parameters
    ----------
    make_model
        Function that returns the whole model, with the same weights on every rank.
    plan
        The model's modules in order, and how tensor parallelism divides them.
    layout
        Division of the job over the processes.
    batches
        Tokens and targets of each step's whole batch from the first step on, the same on every
        rank: those that a checkpoint has taken are skipped.
    optimizer
        Function that makes an optimizer of groups of parameters, for each model stage of this rank;
        or its name, as in `RunOptions`.
    on_step
        Called on rank 0 after every step.
    options
        Fields of `RunOptions`; without `steps`, as many as there are batches.

    Returns
    -------
    JobRun
        Losses and norms by step, the same on every rank.

    Raises
    ------
    InputError
        If model, plan, layout and number of processes do not fit together.

    Notes
    -----
    All ranks end if one fails, or keeps the others waiting for `timeout_s`.

    Examples
    --------
    >>> import stagecut, torch
    >>> model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(8, 4)})
    >>> model["layers"] = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
    >>> model["norm"], model["head"] = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8)
    >>> layout = stagecut.Layout(microbatch=2, global_batch=4, sequence=2, recipe="fp32")
    >>> tokens = torch.arange(8).view(4, 2)
    >>> run = run_job(
    ...     lambda: model, ParallelizePlan(), layout, [(tokens, tokens)] * 3,
    ...     optimizer=torch.optim.SGD, clip=1.0, device="cpu",
    ... )
    >>> len(run.losses), len(run.norms)
    (3, 3)
    """
    chosen = RunOptions(**{"steps": None, **options}, optimizer=optimizer)
    return run_made(lambda: (make_model(), plan), layout, batches, chosen, on_step)


def run_made(
    make: MakeJob,
    layout: Layout,
    batches: Iterable[tuple[Tensor, Tensor]],
    options: RunOptions,
    on_step: Callable[[StepResult], None] | None = None,
) -> JobRun:
    """Train a model that `make` returns on each rank; all ranks end if one of them fails."""
    options.leave_out(_PLANNED, "the layout of a training job says it")
    options.leave_out(["check"], "jobs have `loss_alone` for it (docs/run.md)")
    if options.steps == 1 and (options.measure or options.record is not None):
        raise InputError(_ONE_STEP)
    with guarded(timeout_s=options.timeout_s) as guard:
        alike = {"layout": layout_hash(layout), **options.identity()}
        with joined(guard, options, layout.devices, alike) as place:
            model, plan = make()
            job = RunningJob(model, plan, layout, device=place, schedule=options.schedule)
            return train_job(job, batches, options, on_step=on_step, guard=guard)


def train_job(
    job: RunningJob,
    batches: Iterable[tuple[Tensor, Tensor]],
    options: RunOptions,
    *,
    on_step: Callable[[StepResult], None] | None = None,
    guard: Guard | None = None,
) -> JobRun:
    """Train in an existing process group; for `batches` see `run_job`.

    Schedule, device, threads and timeout of `options` are those of `job` and its group.
    Raises InputError if a batch is not the layout's, or there is no checkpoint to resume from.
    """
    measures = options.measure or options.record is not None
    optimizers = [options.make_optimizer(job.parameter_groups(s)) for s in job.stages]
    norms: list[float] = []
    measured: list[MeasuredStep] = []

    def step(items: Sequence[Any], number: int) -> list[float]:
        (((tokens, targets), last),) = items
        asked = last or (measures and number + 1 == options.steps)
        with measured_step(job, optimizers) if asked else nullcontext() as found:
            loss = job.step(tokens, targets)
            if options.clip:
                norms.append(job.clip_gradients(options.clip))
            for each in optimizers:
                each.step()
        measured.extend(found or ())
        return [loss]

    training = RankTraining(
        run=step, trained=partial(job.trained, optimizers), plan=job.identity,
        restore=lambda found: restore_job(found.path, job, optimizers),
        tokens=job.layout.global_batch * job.layout.sequence,
    )  # fmt: skip
    data = _with_last(iter(batches)) if measures else zip(batches, repeat(False), strict=False)
    done = take_steps(training, data, options, guard=guard, on_step=on_step)
    if measured and len(done) == 1:
        raise InputError(_ONE_STEP)
    if options.record is not None and measured and dist.get_rank() == 0:
        ranks = [to_plain(one) for one in measured]
        write_whole(options.record, json_text({"format": "stagecut-job-run", "ranks": ranks}))
    return JobRun(tuple(step.loss for step in done), tuple(norms), tuple(measured))


def _with_last(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield each batch and whether it is the last, which takes reading one ahead."""
    before = next(batches, None)
    while before is not None:
        batch = next(batches, None)
        yield before, batch is None
        before = batch


def save_job(path: Path, job: RunningJob, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Write model and optimizers of all ranks to a folder, as any layout resumes them.

    A tied weight is in it under its first name, whichever model stages have it. All ranks call this
    together; the folder is written whole or not at all.
    """
    save(path, job.trained(optimizers), plan=job.identity, taken=job.tokens_taken)


def restore_job(path: Path, job: RunningJob, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Restore model and optimizers from a folder that `save_job` wrote under any layout.

    Raises InputError if it is damaged, or of another model or kind of optimizer.
    """
    found = read_checkpoint(path)
    restore(found, job.trained(optimizers), job.identity)
    job.tokens_taken = found.manifest.taken


def token_batches(plan: JobPlan, path: Path | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tokens and targets of whole batches without an end.

    The file at `path` has a sequence of token numbers: ``.npy`` of whole numbers, ``.bin`` of 16
    and ``.u32`` of 32 bits without a header. Each sequence takes the next tokens, from the
    beginning again after the last. Without a file tokens are random. Raises InputError if the file
    cannot be read, is too short, or has tokens beyond the model's vocabulary.
    """
    layout, words = plan.layout, plan.model.vocabulary
    count, length = layout.global_batch, layout.sequence + 1
    if path is None:
        draw = torch.Generator().manual_seed(0)
        while True:
            drawn = torch.randint(0, words, (count, length), generator=draw)
            yield drawn[:, :-1], drawn[:, 1:]
    line = _read(path)
    sequences = (len(line) - 1) // layout.sequence
    if not sequences:
        raise InputError(f"{path}: {len(line)} tokens; a sequence takes {length}")
    at = 0
    while True:
        begins = [(at + k) % sequences * layout.sequence for k in range(count)]
        batch = torch.from_numpy(np.stack([line[b : b + length].astype(np.int64) for b in begins]))
        for token in (int(batch.min()), int(batch.max())):
            if not 0 <= token < words:
                raise InputError(f"{path}: token {token}; {plan.model.name} has 0 to {words - 1}")
        yield batch[:, :-1], batch[:, 1:]
        at += count


def _read(path: Path) -> Ints:
    """Return a file's tokens without reading them all."""
    try:
        if path.suffix == ".npy":
            line: Ints = np.load(path, mmap_mode="r")
        elif path.suffix in _RAW:
            line = np.memmap(path, dtype=_RAW[path.suffix], mode="r")
        else:
            raise InputError(f"{path}: tokens are in .npy, .bin (16 bits) or .u32 (32 bits)")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: no tokens can be read: {error}") from None
    if not isinstance(line, np.ndarray):
        raise InputError(f"{path}: it holds several arrays; one line of whole numbers")
    if line.ndim != 1 or not np.issubdtype(line.dtype, np.integer):
        raise InputError(f"{path}: {line.dtype} of shape {line.shape}; one line of whole numbers")
    return line


def planned_model(plan: JobPlan, reference: str | None) -> tuple[nn.Module, ParallelizePlan]:
    """Return the model of a plan, and how it is divided.

    `reference` is ``module:factory`` or ``file.py:factory`` of both; without it, they are made from
    the plan's description. Raises InputError if they do not fit the plan.
    """
    if reference is None:
        if why := undivided("stagecut", plan.layout, plan.model):
            raise InputError(f"{why}; plan with --for stagecut")
        return transformer(plan.model)
    made: Any = call_factory(reference)
    fits = isinstance(made, tuple) and len(made) == 2
    if not fits or not isinstance(made[0], nn.Module) or not isinstance(made[1], ParallelizePlan):
        raise InputError(
            f"{reference}: for a training job it returns the model and its ParallelizePlan"
        )
    model, modules = made
    layers = len(list(module_of(model, modules.blocks).children()))
    if layers != plan.model.layers:
        raise InputError(
            f"{reference}: its model has {layers} layers, and {plan.model.name} of the plan "
            f"{plan.model.layers}"
        )
    return model, modules
