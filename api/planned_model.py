"""Planned models, the result of `stagecut.plan`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..instances import Latency, PipelineJob, PipelinePlacement, Plan, Workload
from ..instances.common.quantities import show_bytes, show_proved, show_time, text_table
from ..instances.formats.files import save
from ..instances.model.summary import Summarised
from ..runtime import Report, evaluate
from ..runtime.export.registry import takers
from ..runtime.verify.report import loads_of
from ..solvers import Result
from .explain.explain import explain
from .explain.explanation import Explanation
from .gain import gain

if TYPE_CHECKING:
    import torch
    from torch import nn

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
        Of the profile.

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
        """Loads and memory of every device, from the definition."""
        return evaluate(self.workload, self.plan.cluster, self.plan.problem, self.plan.solution)

    def stages(self, model: nn.Module, device: torch.device | None = None) -> list[StageModule]:
        """Cut a model into the plan's stages, as modules for torch's own schedules.

        Parameters
        ----------
        model
            What was planned, or another one of the same class and shapes; the stages have its
            parameters, under its names.
        device
            Where this process runs its stages; default: where the model is.

        Returns
        -------
        list of StageModule
            In the order of the pipeline; what they take and give is in their ``takes`` and
            ``gives``.

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
            for load in sorted(loads, key=lambda load: stages.get(load.name, "~"))
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
        """Return how good the plan is, as it shows itself."""
        plan, unit = self.plan, self.workload.time_unit
        facts: dict[str, object] = {"model": f"{self.workload.name}, {self.workload.n} nodes"}
        times = [show_time(plan.objective, unit)]
        each = plan.objective
        match plan.problem:
            case PipelineJob() as problem:
                each /= problem.batch
                times[0] += f" per iteration of {problem.batch} microbatches"
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
            facts["memory"] = "not limited here (memory_bytes sets a limit)"
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
