"""Linear relaxations of integer programs: of a problem, and of a schedule."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from pyomo.common.gc_manager import PauseGC

from ..formulations.program import quiet_pyomo
from ..formulations.registry import StatedProgram, passes, set_partitioning, sets_of
from ..formulations.task import Task
from ..instances import InfeasibleError, Problem
from ..instances.common.units import show_percent
from ..instances.model.summary import Summarised
from ..runtime.simulate.stages import StageGraph
from ..solvers.core.compiled_model import Compiled, compile_model
from ..solvers.core.proofs import LpRelaxation
from ..solvers.core.proofs import relax as solve_linear
from .best_schedule import schedule_instance, usual_orders

if TYPE_CHECKING:
    import pandas as pd


#: Absolute value up to which a number from a linear solver counts as 0.
SMALL = 1e-7


@dataclass(frozen=True, eq=False, repr=False)
class Relaxation(Summarised):
    """Optimum of the linear relaxation of an integer program.

    Parameters
    ----------
    formulation
        Name of the formulation, as of `relax`.
    bound
        Least objective without whole numbers, in the workload's time unit: no plan is better.
    rows, columns, whole, entries
        Size of the program: numbers of constraints, variables, whole-number variables, and
        coefficients that are not 0.
    seconds
        Time to state and solve it.
    statement
        Symbols and equations, as Markdown.
    shares
        Fraction of each node in each place; in an integer solution all are 0 or 1. Of a sharding,
        fraction of each operator's output with each property; of a schedule, fraction of each pair
        of passes in each order.
    values
        Values of all variables that are not 0, by their names in the model.
    duals
        Dual values of the binding constraints, by their names: increase of the bound per unit of
        the right-hand side, in the workload's time unit.
    passes
        Of a schedule, device, begin and end of each pass.

    Examples
    --------
    >>> import stagecut
    >>> cluster = stagecut.accelerators_and_cpus(2, cpus=0)
    >>> found = stagecut.relax("gpt2-xl", cluster, stagecut.Throughput("noncontiguous"))
    >>> found.formulation, found.shares.shape
    ('compact', (98, 2))
    """

    formulation: str
    bound: float
    rows: int
    columns: int
    whole: int
    entries: int
    seconds: float
    statement: str = field(repr=False)
    shares: pd.DataFrame = field(repr=False)
    values: pd.Series = field(repr=False)
    duals: pd.Series = field(repr=False)
    passes: pd.DataFrame | None = field(default=None, repr=False)

    @property
    def fractional(self) -> float:
        """Share of the placed units in more than one place: 0 for a plan."""
        most = self.shares.max(axis=1)
        return float((most < 1 - 1e-6).mean()) if len(most) else 0.0

    def summary(self) -> dict[str, object]:
        """Return size and bound for display."""
        return {
            "formulation": self.formulation,
            "bound": self.bound,
            "rows": self.rows,
            "columns": self.columns,
            "whole": self.whole,
            "entries": self.entries,
            "divided": show_percent(self.fractional, 0),
            "seconds": self.seconds,
        }


def least_limit(task: Task[Problem], begin: float) -> Relaxation:
    """Return the relaxation over the sets of at most the least load that admits a solution.

    That load is a bound: sets of less load admit none, even in fractions.
    """
    loads = sorted({load for _, _, load in sets_of(task)[1]})
    low, high, best = 0, len(loads) - 1, None
    while low <= high:
        middle = (low + high) // 2
        stated = set_partitioning(task, loads[middle])
        found = solved(stated)
        if found is None:
            low = middle + 1
        else:
            high, best = middle - 1, (stated, *found)
    if best is None:
        raise InfeasibleError(f"{task.workload.name}: no sets of nodes fit, even in parts")
    return replace(read_relaxation("set-partitioning", *best, begin), bound=loads[high + 1])


def solved(stated: StatedProgram) -> tuple[Compiled, LpRelaxation] | None:
    """Return the program as arrays, and its relaxation's optimum; None if there is none."""
    compiled = compile_model(stated.model)
    if compiled.linear is None:
        return None
    found = solve_linear(compiled.linear)
    return None if found.x is None else (compiled, found)


def relaxation_of(name: str, stated: StatedProgram, of: str, begin: float) -> Relaxation:
    """Solve the relaxation of a program of the workload `of`, timed from `begin`.

    InfeasibleError if nothing fits.
    """
    with PauseGC(), quiet_pyomo():
        found = solved(stated)
    if found is None:
        raise InfeasibleError(f"{of}: nothing fits, even in parts")
    return read_relaxation(name, stated, *found, begin)


def read_relaxation(
    name: str, stated: StatedProgram, compiled: Compiled, found: LpRelaxation, begin: float
) -> Relaxation:
    """Return a relaxation's bound, duals and fractional placement from its solution."""
    import pandas as pd

    linear, x, duals = compiled.linear, found.x, found.multipliers
    assert linear is not None
    assert x is not None
    assert duals is not None
    binding = np.flatnonzero(np.abs(duals) > SMALL)
    parts = stated.shares(lambda var: compiled.value(var, x))
    rows, columns = (list(dict.fromkeys(keys)) for keys in zip(*parts, strict=True))
    shares = pd.DataFrame(0.0, index=rows, columns=columns)
    for (row, column), part in parts.items():
        shares.loc[row, column] = part
    used = np.flatnonzero(np.abs(x) > SMALL)
    return Relaxation(
        formulation=name,
        bound=float(linear.cost @ x + linear.offset) * stated.scale,
        rows=linear.matrix.shape[0],
        columns=len(x),
        whole=int(linear.integer.sum()),
        entries=int(linear.matrix.nnz),
        seconds=time.monotonic() - begin,
        statement=_as_markdown(stated.statement),
        shares=shares.loc[:, (shares > SMALL).any()],
        values=pd.Series(x[used], [compiled.columns[j].name for j in used.tolist()], name="value"),
        duals=pd.Series(
            duals[binding] * stated.scale,
            [compiled.rows[i].name for i in binding.tolist()],
            name="dual",
        ),
    )


def _as_markdown(text: str) -> str:
    """Return a module's docstring as Markdown, numpydoc sections as headings."""
    return re.sub(r"^References\n-+$", "**References**\n", text, flags=re.MULTILINE)


def relax_schedule(
    stages: StageGraph,
    microbatches: int,
    *,
    activation_bytes: Sequence[float] | None = None,
    split: bool = True,
) -> Relaxation:
    """State the integer program of `best_schedule` and solve it without whole numbers.

    Parameters
    ----------
    stages, microbatches, activation_bytes, split
        As in `best_schedule`.

    Returns
    -------
    Relaxation
        Bound, size, and when each pass begins and ends: passes of one device may overlap. The
        bound is that of floating-point numbers, and no certificate; `best_schedule` gives those.

    Raises
    ------
    InputError
        If a stage has replicas.
    InfeasibleError
        If the memory is too small, even so.

    Examples
    --------
    >>> import stagecut
    >>> stages = stagecut.runtime.simulate.chain([2.0, 2.0], [4.0, 1.0])
    >>> weak = stagecut.api.relax_schedule(stages, microbatches=3)
    >>> best = stagecut.best_schedule(stages, microbatches=3)
    >>> weak.bound <= best.simulation.makespan, weak.passes.shape
    (True, (18, 3))
    """
    import pandas as pd

    begin = time.monotonic()
    instance, actions = schedule_instance(stages, microbatches, activation_bytes, split=split)
    operations = instance.operations
    known = usual_orders(stages, microbatches, actions).values()
    horizon = min(map(instance.makespan, known), default=math.inf)
    if not math.isfinite(horizon):
        horizon = sum(operation.duration for operation in operations)
    with PauseGC(), quiet_pyomo():
        stated = passes(instance, horizon)
        found = solved(stated)
    if found is None:
        raise InfeasibleError("schedule: the memory is too small for any order, even in parts")
    relaxation = read_relaxation("order of passes", stated, *found, begin)
    compiled, x = found[0], found[1].x
    assert x is not None
    begins = [compiled.value(stated.model.s[i], x) * stated.scale for i in range(len(operations))]
    table = pd.DataFrame(
        {
            "device": [stages.devices[operation.device] for operation in operations],
            "begin": begins,
            "end": [b + o.duration for b, o in zip(begins, operations, strict=True)],
        },
        index=pd.Index([operation.name for operation in operations], name="pass"),
    )
    return replace(relaxation, passes=table)
