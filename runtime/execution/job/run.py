"""Training of a job: steps of its optimizer, checkpoints that other layouts resume, plans' runs.

Checkpoints are those of `checkpoint_folder.py`, all of which are kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from ....instances import InputError
from ....instances.common.arrays import Ints
from ....instances.costs.layout import Layout
from ....instances.job.launchers import undivided
from ....instances.job.plan import JobPlan
from ....instances.pytorch.factory import call_factory
from ...measure.group import alone_if_it_can_be, process_group, threads_per_process
from ..checkpoint_folder import (
    newest,
    read_checkpoint,
    sole_writer,
    write_checkpoint,
)
from ..guard.failures import guarded
from ..options import MakeOptimizer, ProcessOptions, StepResult
from .measured import MeasuredStep, measured_step
from .parallelize import ParallelizePlan, module_of
from .running import RunningJob
from .transformer import transformer

#: Function that returns a model, the same on every rank, and how it is divided.
MakeJob = Callable[[], tuple[nn.Module, ParallelizePlan]]
#: Optimizer states by the names of parameters, as other layouts find them.
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
#: Types of the numbers in a file of tokens without a header, by its ending.
_RAW = {".bin": np.uint16, ".u32": np.uint32}


@dataclass(frozen=True, kw_only=True)
class JobOptions(ProcessOptions):
    """Options of a job's run, beside those of all.

    Parameters
    ----------
    schedule
        In place of the layout's; see `RunningJob`.
    steps
        In all, those before a checkpoint included; None: as many as there are batches.
    clip
        Largest norm of all gradients together; 0: they are not clipped.
    measure
        Whether the last step is measured by term, which takes at least two.

    Examples
    --------
    >>> JobOptions(clip=1.0).device
    'auto'
    """

    schedule: str | None = None
    steps: int | None = None
    clip: float = 0.0
    measure: bool = False

    def __post_init__(self) -> None:
        """Refuse what no run can have."""
        super().__post_init__()
        if not 0 <= self.clip < math.inf:
            raise InputError(f"clip: {self.clip:g}; it must be a number of at least 0")


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
    optimizer: MakeOptimizer,
    on_step: Callable[[StepResult], None] | None = None,
    **options: Any,
) -> JobRun:
    """Train as one of a layout's processes; all of them call this with the same arguments.

    Parameters
    ----------
    make_model
        Returns the whole model, the same numbers on every rank.
    plan
        The model's modules in order, and how tensor parallelism divides them.
    layout
        How the job is divided over the processes.
    batches
        Tokens and targets of each step's whole batch from the first step on, the same on every
        rank: those that a checkpoint has seen are passed over.
    optimizer
        Makes one of groups of parameters; called for each model stage of this rank.
    on_step
        Called on rank 0 after every step.
    options
        Fields of `JobOptions`.

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
    chosen = JobOptions(**options)
    return run_made(lambda: (make_model(), plan), layout, batches, optimizer, chosen, on_step)


def run_made(
    make: MakeJob,
    layout: Layout,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: MakeOptimizer,
    options: JobOptions,
    on_step: Callable[[StepResult], None] | None = None,
) -> JobRun:
    """Train a model that is made on each rank, and ends with all ranks if that fails."""
    with guarded(timeout_s=options.timeout_s) as guard:
        alone_if_it_can_be(layout.devices)
        if guard is not None:
            guard.join({"layout": repr(layout), "options": repr(options)})
        torch.set_num_threads(options.threads or threads_per_process())
        with process_group(options.device, guard) as place:
            model, plan = make()
            job = RunningJob(model, plan, layout, device=place, schedule=options.schedule)
            return train_job(
                job, batches, optimizer=optimizer, options=options, on_step=on_step,
                on_gradients=lambda _: None if guard is None else guard.tick(),
            )  # fmt: skip


def run_planned_job(
    plan: JobPlan,
    reference: str | None,
    tokens: Path | None,
    optimizer: MakeOptimizer,
    options: JobOptions,
    on_step: Callable[[StepResult], None] | None = None,
) -> JobRun:
    """Train a plan's model as one of its processes.

    `reference` is ``module:factory`` or ``file.py:factory`` of a model and its `ParallelizePlan`;
    without, the model is made from the plan's description. For `tokens` see `token_batches`. Raises
    InputError if model, plan, tokens and number of processes do not fit together.
    """
    make = partial(_make, plan, reference)
    return run_made(make, plan.layout, token_batches(plan, tokens), optimizer, options, on_step)


def train_job(
    job: RunningJob,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    optimizer: MakeOptimizer,
    options: JobOptions = JobOptions(),
    on_gradients: Callable[[RunningJob], None] | None = None,
    on_step: Callable[[StepResult], None] | None = None,
) -> JobRun:
    """Train in a process group that is there already; for `batches` and `optimizer` see `run_job`.

    Schedule, device, threads and timeout of `options` are those of `job` and its group.
    `on_gradients` is called after each backward pass, before gradients are clipped. Raises
    InputError if a batch is not the layout's, or there is no checkpoint to resume from.
    """
    losses: list[float] = []
    norms: list[float] = []
    measured: Sequence[MeasuredStep] = ()
    optimizers = [optimizer(job.parameter_groups(s)) for s in job.stages]
    with sole_writer(options.checkpoint, resume=options.resume):
        done, taken = _begin(job, optimizers, options)
        end = None if options.steps is None else taken + max(options.steps - done, 0)
        for (tokens, targets), last in _with_last(islice(batches, taken, end)):
            begun = time.perf_counter()
            with measured_step(job, optimizers) if options.measure and last else nullcontext() as m:
                losses.append(job.step(tokens, targets))
                if on_gradients is not None:
                    on_gradients(job)
                if options.clip:
                    norms.append(job.clip_gradients(options.clip))
                for each in optimizers:
                    each.step()
            measured = m or []
            done += 1
            if on_step is not None and dist.get_rank() == 0:
                on_step(StepResult(done - 1, losses[-1], time.perf_counter() - begun))
            if options.checkpoint is not None and (last or options.is_due(done)):
                save_job(options.checkpoint / f"step-{done:08}", job, optimizers)
    if options.measure and len(losses) == 1:
        raise InputError("report: the first step does more than the others; take at least two")
    return JobRun(tuple(losses), tuple(norms), tuple(measured))


def _with_last(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield each with whether it is the last."""
    before = next(batches, None)
    while before is not None:
        batch = next(batches, None)
        yield before, batch is None
        before = batch


def _begin(
    job: RunningJob, optimizers: Sequence[torch.optim.Optimizer], options: JobOptions
) -> tuple[int, int]:
    """Return the steps that are done and the batches taken, with the newest checkpoint's state.

    Another layout may have taken batches of another size. Raises InputError if all that they had
    together is no whole number of batches of this one.
    """
    folder = options.checkpoint
    found = None if folder is None else newest(folder, resume=options.resume)
    if found is None:
        return 0, 0
    restore_job(found.path, job, optimizers)
    layout = job.layout
    if not job.tokens_taken:  # it was written before they were counted
        return found.step, found.step
    batches, rest = divmod(job.tokens_taken, layout.global_batch * layout.sequence)
    if rest:
        raise InputError(
            f"{found.path}: {job.tokens_taken} tokens were taken, no whole number of batches of "
            f"{layout.global_batch} sequences of {layout.sequence}; plan with the batch before"
        )
    return found.step, batches


def save_job(path: Path, job: RunningJob, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Write model and optimizers of all ranks to a folder, as any layout resumes them.

    A tied weight is in it under its first name, whichever model stages have it. All ranks call this
    together; the folder is there whole or not at all.
    """
    state, names = _state(job, optimizers)
    write_checkpoint(path, state, names, tokens=job.tokens_taken)


def restore_job(path: Path, job: RunningJob, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Take model and optimizers from a folder that `save_job` wrote under any layout.

    Raises InputError if it is damaged, or of another model or kind of optimizer.
    """
    found = read_checkpoint(path)
    state, names = _state(job, optimizers)
    found.load(state, found.contents())
    job.tokens_taken = found.manifest.tokens
    for stage, optimizer in zip(job.stages.values(), optimizers, strict=True):
        model, kept = get_state_dict(stage, optimizer, options=_FLAT)
        set_state_dict(
            stage,
            optimizer,
            model_state_dict={name: state["model"][names[name]] for name in model},
            optim_state_dict={
                name: _unshared_state(state["optimizer"], name, job) for name in kept
            },
            options=_FLAT,
        )


def _state(
    job: RunningJob, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return model and optimizer, and what a checkpoint calls each name of the model."""
    state: dict[str, Any] = {"model": {}, "optimizer": {}}
    names: dict[str, str] = {}
    for stage, optimizer in zip(job.stages.values(), optimizers, strict=True):
        model, kept = get_state_dict(stage, optimizer, options=_FLAT)
        names |= {name: _first_name(name, job) for name in model}
        state["model"] |= {names[name]: value for name, value in model.items()}
        state["optimizer"] |= {_first_name(name, job): value for name, value in kept.items()}
    return state, names


def _unshared_state(state: dict[str, Any], name: str, job: RunningJob) -> Any:
    """Return an optimizer state by name: a copy where stages of a rank share one weight."""
    first = _first_name(name, job)
    value = state[first]
    return value.clone() if isinstance(value, Tensor) and name != first else value


def _first_name(name: str, job: RunningJob) -> str:
    """Return what a checkpoint calls a value of the model or the optimizer."""
    key = f".{name}."
    for first, *others in job.ties:
        for other in others:
            key = key.replace(f".{other}.", f".{first}.")
    return key[1:-1]


def token_batches(plan: JobPlan, path: Path | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tokens and targets of whole batches without an end.

    The file at `path` is one line of token numbers: ``.npy`` of whole numbers, ``.bin`` of 16 and
    ``.u32`` of 32 bits without a header; each sequence takes the next tokens, and the first ones
    follow the last. Without a file they are random. Raises InputError if the file is none, too
    short, or has tokens that the model has not.
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


def _make(plan: JobPlan, reference: str | None) -> tuple[nn.Module, ParallelizePlan]:
    """Return the model of the plan, and how it is divided."""
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
