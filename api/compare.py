"""Comparison of methods: every workload, problem and method as a row of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..instances import (
    Cluster,
    DeviceMesh,
    InputError,
    Problem,
    StagecutError,
    Workload,
)
from ..instances.common.units import show_percent
from ..instances.formats.files import load
from ..instances.formats.plan_json import problem_values
from ..instances.model.plan import gap_between
from ..runtime import evaluate
from ..solvers import DEFAULT_LIMITS, METHODS, Limits, Result
from .common import checked_problem, default_problem
from .solve import solve

if TYPE_CHECKING:
    import pandas as pd

Named = TypeVar("Named")

#: Values of a case's row in the table, by column.
Row = dict[str, Any]

COLUMNS = ("workload", "problem", "method", "status", "limit", "objective", "bound", "best_bound",
           "gap", "ratio", "seconds", "verified", "found_by", "error", "trace")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Case:
    """A workload, a problem on it, and a method."""

    # name, label: what the table calls the workload and the problem
    name: str
    workload: Workload
    label: str
    problem: Problem
    method: str
    cluster: Cluster | None
    limits: Limits

    @property
    def names(self) -> Row:
        """Columns that name the case."""
        return {"workload": self.name, "problem": self.label, "method": self.method}

    @property
    def key(self) -> str:
        """Identifying text of the case: names, and all that the result depends on."""
        asked = {
            **self.names,
            "fingerprint": self.workload.fingerprint,
            "cluster": self.cluster and self.cluster.fingerprint,
            "fields": problem_values(self.problem),
            "limits": asdict(self.limits),
        }
        return json.dumps(asked, sort_keys=True, default=str)


def row_of(case: Case) -> Row:
    """Solve a case and return its row, also of a refusal."""
    try:
        result = solve(
            case.workload,
            case.cluster,
            case.problem,
            method=case.method,
            limits=case.limits,
            workers=1,  # methods are compared, and cases may run beside each other
        )
    except StagecutError as error:
        return {**case.names, "status": "error", "error": str(error)}
    return {**case.names, **_result_columns(case.workload, case.problem, result)}


def compare(
    workloads: Workload | str | Path | Sequence[Workload | str | Path] | Mapping[str, Workload],
    problems: Problem | Sequence[Problem] | Mapping[str, Problem] | None = None,
    methods: str | Sequence[str] = "auto",
    *,
    cluster: Cluster | None = None,
    limits: Limits | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> pd.DataFrame:
    """Solve every problem on every workload with every method that it has, one after the other.

    Parameters
    ----------
    workloads
        One or several, each a workload, its file, or the name of a shipped one; a dictionary
        says what the table calls them.
    problems
        One or several, of any kind; a dictionary says what the table calls them. Default: for
        each workload the one that `solve` takes.
    methods
        One or several of `stagecut.METHODS`, as in `solve`. A problem is not solved by methods of
        others.
    cluster, limits
        As in `solve`, for each case.
    on_row
        Called with every row.

    Returns
    -------
    pandas.DataFrame
        One row per case: workload, problem, method; status, limit, objective, bound and seconds as
        of its `Result`; best_bound, the largest bound that any method has proved for the workload
        and problem, with gap and ratio of the objective to it; verified; found_by, the method that
        found the plan; error, if it was one, or why there is no plan; trace, a list of (seconds,
        objective, bound); and plan.

    Raises
    ------
    InputError
        If there is nothing to compare, a method does not exist, or two workloads or problems
        have one name.

    Examples
    --------
    >>> from stagecut import Throughput
    >>> problems = [Throughput(), Throughput(split="contiguous")]
    >>> table = compare("gpt2-xl", problems, ["single", "greedy"])
    >>> table[["problem", "method", "status"]]
                            problem  method    status
    0                    throughput  single  feasible
    1                    throughput  greedy  feasible
    2  throughput, split=contiguous  single  feasible
    3  throughput, split=contiguous  greedy  feasible
    """
    named = _named_workloads(workloads)
    asked = _named_problems(problems)
    wanted = [methods] if isinstance(methods, str) else list(methods)
    if not named or not wanted:
        raise InputError("compare: give at least one workload and one method")
    cases = [
        Case(
            name, workload, label, problem, method, cluster, limits or DEFAULT_LIMITS[problem.name]
        )
        for name, workload in named.items()
        for label, problem in (asked or _usual(workload)).items()
        for method in wanted
        if method.partition(":")[0] in METHODS[problem.name]
    ]
    for method in wanted:
        if not any(case.method == method for case in cases):
            kinds = {case.problem.name for case in cases} or set(METHODS)
            known = sorted({other for kind in kinds for other in METHODS[kind]})
            raise InputError(f"compare: no method {method!r}; use one of {', '.join(known)}")
    rows = []
    for case in cases:
        rows.append(row_of(case))
        if on_row is not None:
            on_row(rows[-1])
    table = tabulate(rows)
    table["plan"] = [row.get("plan") for row in rows]
    return table


def _named_workloads(
    workloads: Workload | str | Path | Sequence[Workload | str | Path] | Mapping[str, Workload],
) -> dict[str, Workload]:
    if isinstance(workloads, Mapping):
        return dict(workloads)
    several = [workloads] if isinstance(workloads, Workload | str | Path) else workloads
    loaded = [one if isinstance(one, Workload) else load(one) for one in several]
    return _by_name([(workload.name, workload) for workload in loaded], "workloads")


def _usual(workload: Workload) -> dict[str, Problem]:
    """Return the default problem of a workload by its name."""
    usual = default_problem(workload)
    return {usual.name: usual}


def _named_problems(
    problems: Problem | Sequence[Problem] | Mapping[str, Problem] | None,
) -> dict[str, Problem]:
    if problems is None:
        return {}
    if isinstance(problems, Mapping):
        return {name: checked_problem(one) for name, one in problems.items()}
    several = problems if isinstance(problems, Sequence) else [problems]
    return _by_name([(_described(checked_problem(one)), one) for one in several], "problems")


def _by_name(pairs: Sequence[tuple[str, Named]], what: str) -> dict[str, Named]:
    named = dict(pairs)
    if len(named) < len(pairs):
        raise InputError(f"compare: two {what} have one name; give a dictionary of names")
    return named


def _described(problem: Problem) -> str:
    """Return a problem's name with its options that differ from the defaults."""
    words = [problem.name]
    for field in fields(problem):
        value = getattr(problem, field.name)
        value = value.text if isinstance(value, DeviceMesh) else value
        if isinstance(value, str | int | float) and (
            field.default is MISSING or value != field.default
        ):
            words.append(f"{field.name}={value}")
    return ", ".join(words)


def _result_columns(workload: Workload, problem: Problem, result: Result) -> Row:
    """Return the columns of a case's result."""
    row: Row = {
        key: getattr(result, key)
        for key in ("status", "limit", "objective", "bound", "gap", "seconds", "plan")
    }
    row["found_by"] = result.method
    because = result.reason or "".join(result.notes[-1:])
    if result.plan is None and because:
        row["error"] = because
    row["trace"] = [
        [value if math.isfinite(value) else None for value in (p.seconds, p.objective, p.bound)]
        for p in result.trace
    ]
    row["verified"] = False
    if result.plan is not None:
        report = evaluate(workload, result.plan.cluster, problem, result.plan.solution)
        row["verified"] = not report.violations
    return row


def summaries(table: pd.DataFrame, units: Mapping[str, str], method: str = "auto") -> list[str]:
    """Return for each workload and problem, in one line, how a method compares with the others.

    Of several workloads or problems also, for each other method, the largest and the mean ratio of
    its objectives to the method's. `units` are those of the times, by workload.

    Examples
    --------
    >>> from stagecut import Throughput
    >>> table = compare("gpt2-xl", Throughput(), ["single", "greedy"])
    >>> summaries(table, {"gpt2-xl": "ms"}, "greedy")
    ['gpt2-xl: greedy 17.94 ms, 73.6 % faster than single, the best other method']
    """
    lines = []
    pairs = table[["workload", "problem"]].drop_duplicates()
    several = set(pairs["workload"][pairs["workload"].duplicated()])
    for (workload, problem), rows in table.groupby(["workload", "problem"], sort=False):
        found = rows[rows["objective"].notna()]
        mine, others = found[found["method"] == method], found[found["method"] != method]
        if mine.empty or len(rows) < 2:
            continue
        time = float(mine["objective"].min())
        name = f"{workload}, {problem}" if workload in several else workload
        line = f"{name}: {method} {time:.4g} {units[str(workload)]}"
        if others.empty:
            lines.append(f"{line}; no other method has a plan")
            continue
        least = float(others["objective"].min())
        best = others.loc[others["objective"] == least, "method"].iloc[0]
        part = 1 - time / least if least else 0.0
        how = show_percent(abs(part)) + (" faster" if part > 0 else " slower")
        how = f"{how} than" if abs(part) >= 5e-4 else "as fast as"
        lines.append(f"{line}, {how} {best}, the best other method")
    return lines + _ratios(table, method)


def _ratios(table: pd.DataFrame, method: str) -> list[str]:
    """Return for each other method how its objectives compare with one's, where it has several."""
    found = table[table["objective"].notna()].drop_duplicates(["workload", "problem", "method"])
    wide = found.pivot(index=["workload", "problem"], columns="method", values="objective")
    if method not in wide or len(wide) < 2:
        return []
    lines = []
    for other in dict.fromkeys(found["method"]):
        ratios = (wide[other] / wide[method]).where(wide[method] > 0).dropna()
        if other != method and len(ratios) > 1:
            lines.append(
                f"{other}: {ratios.max():.2f} times {method} at most, {ratios.mean():.2f} on "
                f"average, of {len(ratios)}"
            )
    return lines


def tabulate(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the tidy table of some rows.

    What one method has proved holds for all: each objective is set against the best bound for its
    workload and problem.

    Examples
    --------
    >>> bounds = {"auto": 9.0, "megatron": 2.0}
    >>> case = {"workload": "net", "problem": "p", "objective": 10.0}
    >>> list(tabulate([{**case, "method": m, "bound": b} for m, b in bounds.items()])["gap"])
    [0.1, 0.1]
    """
    import pandas as pd

    table = pd.DataFrame([dict(row) for row in rows]).reindex(columns=list(COLUMNS))
    for column in ("objective", "bound", "seconds"):
        table[column] = table[column].astype(float)
    best = table.groupby(["workload", "problem"], sort=False)["bound"].transform("max")
    table["best_bound"] = best
    pairs = zip(table["objective"], best.fillna(-math.inf), strict=True)
    table["gap"] = [gap_between(objective, bound) for objective, bound in pairs]
    table["gap"] = table["gap"].where(table["objective"].notna() & best.notna())
    table["ratio"] = (table["objective"] / best).where(best > 0)
    return table
