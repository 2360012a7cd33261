"""Planning of PyTorch models in one call, and the planned model that it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from ..instances import (
    Cluster,
    InfeasibleError,
    InputError,
    Latency,
    PipelineJob,
    PipelinePlacement,
    Plan,
    Problem,
    StagecutError,
    Throughput,
    Workload,
    is_iteration,
    is_stream,
)
from ..instances.common.choices import Limit, Status, Tied
from ..instances.common.errors import quote
from ..instances.common.units import show_bytes, show_count, show_proved, show_time, text_table
from ..instances.formats.files import load, load_plan, save
from ..instances.model.summary import Summarised
from ..instances.model.tied_weights import tied_as
from ..instances.model.training_layers import training_layers
from ..instances.pytorch.factory import Made, made_of, make
from ..instances.pytorch.profile import profile
from ..instances.pytorch.tracing.traced import export_failure
from ..runtime import Report, evaluate
from ..runtime.export.registry import takers
from ..runtime.measure.group import threads_per_process
from ..runtime.verify.report import loads_of
from ..solvers import Limits, Result
from ..solvers.core.search import OPTIMAL_GAP
from .explain import explain
from .explanation import Explanation
from .gain import gain
from .solve import solve

if TYPE_CHECKING:
    from ..runtime.execution.stage_modules import StageModule


@dataclass(frozen=True, eq=False, repr=False)
class PlannedModel(Summarised):
    """A model with its plan.

    Parameters
    ----------
    workload
        The model as a graph with costs: its profile.
    result
        Plan, bound and gap, and how the search ended.
    args, kwargs
        The inputs of one microbatch.
    notes
        Notes of the profile.

    Examples
    --------
    >>> import stagecut, torch
    >>> with torch.device("meta"):  # so large that two devices gain something
    ...     model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(4)))
    ...     inputs = torch.zeros(2048, 8192)
    >>> planned = stagecut.plan(model, inputs, devices=2, estimate="h100")
    >>> planned.plan.problem.name, planned.workload.name
    ('pipeline', 'Sequential')
    """

    workload: Workload
    result: Result
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """Plan of the model's operators."""
        assert self.result.plan is not None
        return self.result.plan

    @property
    def checked(self) -> Report:
        """Loads and memory of every device, recomputed from the definition."""
        return evaluate(self.workload, self.plan.cluster, self.plan.problem, self.plan.solution)

    def stages(self, model: nn.Module, device: torch.device | None = None) -> list[StageModule]:
        """Cut a model into the plan's stages, as modules for torch's own schedules.

        Parameters
        ----------
        model
            The planned model, or another one of the same class and shapes; the stages have its
            parameters, under its names.
        device
            Device of this process's stages; default: that of the model.

        Returns
        -------
        list of StageModule
            In the order of the pipeline, with empty tensors of the shapes of their inputs and
            outputs in ``takes`` and ``gives``.

        Raises
        ------
        InputError
            If the model is another one, or cannot be cut there.
        """
        from ..runtime.execution.prepare import split_model
        from ..runtime.execution.stage_modules import stage_modules

        prepared = split_model(self.plan, model, self.args, self.kwargs, self.workload)
        return stage_modules(prepared, device)

    def report(self) -> str:
        """Return the plan as text: a table of devices, and a few lines."""
        unit, stages = self.workload.time_unit, self._stage_numbers()
        order = {name: k for k, name in enumerate(stages)}  # by their first stages
        loads = loads_of(self.plan.problem, self.checked)
        rows = [
            (
                f"{stages.get(load.name, '')}  {load.name}".strip(),
                str(len(load.nodes)),
                f"{load.compute:.6g}",
                f"{load.transfer:.4g}",
                f"{load.busy:.6g}",
                show_bytes(load.memory_bytes),
                show_bytes(load.capacity_bytes),
            )
            for load in sorted(loads, key=lambda load: order.get(load.name, len(order)))
            if load.nodes
        ]
        idle = [load.name for load in loads if not load.nodes]
        titles = (
            "stage, device" if stages else "device",
            "nodes",
            "compute",
            "transfers",
            f"busy ({unit})",
            "peak memory",
            "of",
        )
        lines = [f"{name:>9}  {value}" for name, value in self.summary().items()]
        if idle:
            lines.insert(0, f"{'unused':>9}  {', '.join(idle)}: no plan found gains by them")
        takers_of = takers(self.workload, self.plan).items()
        able = ", ".join(name for name, reason in takers_of if not reason) or "none"
        lines.append(f"{'export to':>9}  {able}")
        return "\n".join([text_table(titles, rows), *lines, *self.notes])

    def plot(self, path: str | Path = "plan.png") -> Path:
        """Draw the load and the memory of every device into a PNG, SVG or PDF file."""
        from ..runtime.pictures.charts import draw_loads

        draw_loads(self.checked, self.plan, Path(path))
        return Path(path)

    def explain(self, seconds: float = 20.0) -> Explanation:
        """Explain the plan; see `stagecut.explain`."""
        return explain(self.workload, self.plan, seconds=seconds)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file, for `stagecut run` and `split_model`."""
        save(self.plan, Path(path), self.workload)

    def summary(self) -> dict[str, object]:
        """Return the plan's times, bound and gap for display."""
        plan, unit = self.plan, self.workload.time_unit
        facts: dict[str, object] = {
            "model": f"{self.workload.name}, {show_count(self.workload.n, 'node')}"
        }
        times = [show_time(plan.objective, unit)]
        each = plan.objective
        match plan.problem:
            case PipelineJob() as problem:
                each /= problem.batch
                times[0] += f" per iteration of {show_count(problem.batch, 'microbatch')}"
                times.append(f"{show_time(each, unit)} per microbatch")
                facts["schedule"] = problem.schedule
            case Latency():
                times[0] += " for one request"
            case _:
                times[0] += " per microbatch"
        size = self._samples()
        if size > 1:
            times.append(f"{show_time(each / size, unit)} per sample ({size} in a microbatch)")
        facts["objective"] = ", ".join(times)
        facts["bound"] = f"{show_time(plan.bound, unit)} ({self.result.bound_origin})"
        facts["gap"] = show_proved(plan.gap, self.result.status)
        gained = gain(self.workload, self.result)
        if gained is not None and math.isfinite(gained.speed_up):
            facts["speed-up"] = gained.text(unit)
        if all(math.isinf(kind.memory_bytes) for kind in plan.cluster.kinds):
            facts["memory"] = "not limited here (as devices, give a Cluster with limits)"
        return facts

    def _stage_numbers(self) -> dict[str, str]:
        """Return the numbers of the stages of each device in use, where they form a pipeline."""
        numbers: dict[str, list[str]] = {}
        if isinstance(self.plan.solution, PipelinePlacement):
            for s, d in enumerate(self.plan.solution.devices):
                numbers.setdefault(self.plan.device_names[d], []).append(str(s))
        return {name: ", ".join(own) for name, own in numbers.items()}

    def _samples(self) -> int:
        """Return the first dimension of the first input that has one: samples in a microbatch."""
        for value in (*self.args, *self.kwargs.values()):
            shape = getattr(value, "shape", ())
            for samples in shape[:1]:
                return int(samples)
        return 1


#: Microbatches of an iteration, unless a problem is given.
MICROBATCHES = 8


def plan(
    model: nn.Module | str,
    inputs: Any = None,
    *,
    devices: int | Cluster,
    problem: Problem | None = None,
    estimate: str | None = None,
    depth: int | Literal["auto"] | None = None,
    limits: Limits | None = None,
    keep: str | Path | None = None,
) -> PlannedModel:
    """Profile a model, and plan where its operators run.

    In a program that torchrun started, and that has set up `torch.distributed`, rank 0 plans, and
    all ranks get its plan.

    Parameters
    ----------
    model
        A `torch.nn.Module`, or a factory of the model and its inputs: ``module:factory`` or
        ``file.py:factory``.
    inputs
        Inputs of one microbatch: a tensor, a tuple of positional ones or a dictionary of named
        ones. None if the factory gives them.
    devices
        Number of devices, all like that of the model, with the memory of its GPU, or of the
        accelerator that `estimate` names; CPUs have no limit, and the report says so. Or a cluster,
        with its links and memories.
    problem
        The objective; default: `PipelineJob(8)`, 1F1B on a chain of stages, for a model in training
        mode (as `model.train()` and `model.eval()` set it), including its backward pass; else
        `Throughput` with contiguous stages. `Latency()` is the time of one request.
    estimate
        Name of an accelerator, such as ``h100``, whose roofline gives the times; nothing is run.
        Default: operators are measured on the model's device; on CPUs with the threads that each
        process will have: those of torch in a program that torchrun started, else this machine's
        cores divided by the devices, as in `stagecut run`.
    depth
        None: operators are placed; d or ``auto``: modules at this call depth, as for `profile`.
    limits
        Limits of the search, as for `solve`; default: 60 s and a gap of 1 %.
    keep
        Folder of the plan and its workload. If it has them they are read, and nothing is measured
        or searched: a restarted script cuts the model in the same places. Else they are written
        there (by rank 0).

    Returns
    -------
    PlannedModel
        The plan with its report, picture, explanation, and the stages as modules.

    Raises
    ------
    InputError
        If the model cannot be traced or, for several devices, not be cut (`profile` and `solve` can
        plan it all the same); if the plan in `keep` is for other devices or another problem; or if
        an argument is wrong.
    InfeasibleError
        If no plan exists, with the reason and a remedy.
    StagecutError
        If no plan was found within the limits.

    Examples
    --------
    >>> import stagecut, torch
    >>> with torch.device("meta"):  # so large that two devices gain something
    ...     model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(4)))
    ...     inputs = torch.zeros(2048, 8192)
    >>> planned = stagecut.plan(model, inputs, devices=2, estimate="h100")
    >>> planned.result.status, len(planned.stages(model))
    ('optimal', 2)
    """
    if isinstance(model, nn.Module) and inputs is None:
        raise InputError("inputs: give those of one microbatch, such as a tensor")
    if not isinstance(devices, int | Cluster):
        raise InputError(f"devices: {quote(devices)}; give their number, or a Cluster")
    made = make(model) if isinstance(model, str) else made_of(model, inputs)
    training = made.model.training
    problem = problem or (PipelineJob(MICROBATCHES) if training else Throughput("contiguous"))
    if isinstance(problem, PipelineJob) and problem.schedule is None:
        problem = replace(problem, schedule=problem.schedule_name)
    if is_stream(problem) and not training:
        raise InputError("problem: a stream has a backward pass; call model.train()")
    ask = _PlanArguments(made, training, problem, devices, estimate, depth, limits)
    search = ask.planned if keep is None else partial(_kept_or_planned, ask, Path(keep))
    if not (dist.is_available() and dist.is_initialized()):
        return search()
    return replace(_from_rank_0(search), args=made.args, kwargs=made.kwargs)


@dataclass(frozen=True)
class _PlanArguments:
    """Arguments of `plan`, with defaults filled in."""

    made: Made
    training: bool
    problem: Problem
    devices: int | Cluster
    estimate: str | None
    depth: int | Literal["auto"] | None
    limits: Limits | None

    def planned(self) -> PlannedModel:
        """Profile the model and search."""
        made, problem = self.made, self.problem
        staged = is_stream(problem)
        depth = "auto" if staged and self.depth is None else self.depth
        devices = self.devices.size if isinstance(self.devices, Cluster) else self.devices
        with _threads_of_each(devices):
            done = profile(
                made.model, made.args, made.kwargs,
                training=self.training, estimate=self.estimate, depth=depth,
            )  # fmt: skip
        workload = training_layers(done.workload) if staged else done.workload
        if is_iteration(problem):
            workload = tied_as(workload, Tied.COPIES, problem.batch)
        cluster = self.cluster(workload)
        if not done.traced.runs and cluster.size > 1:
            raise InputError(f"{workload.name}: {export_failure(done.traced)}")
        result = solve(workload, cluster, problem, limits=self.limits)
        if result.plan is None:
            if result.status == "infeasible":
                raise InfeasibleError(f"{workload.name}: {result.reason}")
            raise StagecutError(
                f"{workload.name}: no plan found within the limit ({result.limit}); give more time"
            )
        return PlannedModel(workload, result, made.args, made.kwargs, done.notes)

    def cluster(self, workload: Workload) -> Cluster:
        """Return the devices to plan for."""
        if isinstance(self.devices, Cluster):
            return self.devices
        assert workload.cluster is not None  # a profile suggests one
        accelerators = Cluster(tuple(kind for kind in workload.cluster.kinds if not kind.host))
        memory = None if self.estimate is not None else _memory_of(self.made.model)
        return accelerators.with_counts(self.devices, memory_bytes=memory)


def _kept_or_planned(ask: _PlanArguments, folder: Path) -> PlannedModel:
    """Return the plan that a folder keeps; where there is none, plan and keep it."""
    workload_file, plan_file = folder / "workload.json", folder / "plan.json"
    if not plan_file.exists():
        planned = ask.planned()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"keep: {folder}: {error.strerror}; name another folder") from None
        save(planned.workload, workload_file)
        planned.save(plan_file)
        return planned
    workload = load(workload_file)
    plan = load_plan(plan_file, workload)
    differs = [
        what
        for what, is_same in (
            ("problem", plan.problem == ask.problem),
            ("devices", plan.cluster == ask.cluster(workload)),
            ("training", (workload.provenance.get("pass") == "training") == ask.training),
        )
        if not is_same
    ]
    if differs:
        raise InputError(
            f"keep: {plan_file} was made for another value of {' and '.join(differs)}; name "
            "another folder, or delete this one to plan again"
        )
    note = f"kept in {folder}: nothing was measured or searched"
    result = Result(
        status=Status.OPTIMAL if plan.gap <= OPTIMAL_GAP else Status.FEASIBLE,
        limit=Limit.NONE,
        plan=plan,
        bound=plan.bound,
        bound_origin=str(plan.certificate["origin"]),
        method=plan.method,
        seconds=0.0,
        trace=(),
        phases={},
        versions={},
    )
    return PlannedModel(workload, result, ask.made.args, ask.made.kwargs, (note,))


@contextmanager
def _threads_of_each(devices: int) -> Iterator[None]:
    """Set torch's CPU threads to those of each process of a plan."""
    before = torch.get_num_threads()
    running = dist.is_available() and dist.is_initialized()  # this is one of the processes
    torch.set_num_threads(before if running else threads_per_process(max(1, devices)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _memory_of(model: nn.Module) -> float | None:
    """Return the memory of the GPU that a model is on; None on CPUs."""
    first = next(model.parameters(), None)
    if first is None or first.device.type != "cuda":
        return None
    return float(torch.cuda.get_device_properties(first.device).total_memory)


def _from_rank_0(search: Callable[[], PlannedModel]) -> PlannedModel:
    """Return rank 0's result, or raise its error, on all ranks."""
    box: list[PlannedModel | StagecutError | None] = [None]
    if dist.get_rank() == 0:
        try:
            box = [replace(search(), args=(), kwargs={})]
        except Exception as error:  # whatever it is, no other rank may wait for ever
            box = [error if isinstance(error, StagecutError) else StagecutError(str(error))]
            dist.broadcast_object_list(box)
            raise
    dist.broadcast_object_list(box)
    (found,) = box
    if isinstance(found, StagecutError):
        raise found
    assert found is not None
    return found
