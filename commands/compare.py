"""`stagecut compare`: methods against each other."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..api.cases import RECORD, run_cases
from ..api.compare import Case, Row, summaries, tabulate
from ..instances import InputError, is_stream
from ..instances.common.escape import plain
from ..instances.common.units import UNSPECIFIED
from ..instances.job.plan import is_job_plan
from ..solvers import METHODS, method_of
from ..solvers.job import methods as pipeline
from ..solvers.sharding import methods as sharding
from .common import options
from .common.console import (
    ERR,
    OUT,
    check_outputs,
    check_table_file,
    fits,
    refuse,
    show_gap,
    tell_written,
)
from .common.launchers import narrow_for_launcher
from .common.pose import (
    LIMITS,
    WORKERS,
    ProblemOptions,
    build,
    limits_of,
    load_workload,
    state,
    with_rings,
)

if TYPE_CHECKING:
    import pandas as pd

#: Methods to compare unless told otherwise, where the problem has them.
DEFAULT_METHODS = ("auto", "dp", "milp", "greedy", "local-search")


def compare(
    workloads: Annotated[list[str], typer.Argument(help="Files, or names of shipped workloads.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the table as CSV; resumed if it exists."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            autocompletion=options.complete_methods,
            help="With commas; default: auto, and usual rules or baselines.",
        ),
    ] = None,
    problems: Annotated[
        list[str] | None,
        typer.Option(
            "--problem",
            autocompletion=options.PROBLEM,
            help="As for solve; repeat it to compare on several.",
        ),
    ] = None,
    settings: options.Setting = None,
    split: options.PipelineSplit = None,
    microbatches: options.Microbatches = None,
    schedule: options.Schedule = None,
    mesh: options.Mesh = None,
    cluster: options.ClusterFile = None,
    accelerators: options.Accelerators = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    launcher: options.For = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for each case; default: 60.")
    ] = None,
    gap: options.Gap = None,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="<int>", help="Cases run at the same time; default: 1.", min=1),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Run the cases on the Dask scheduler at this address.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the comparison: .png or .svg.")] = None,
    global_batch: options.GlobalBatch = None,
    sequence: options.SequenceTokens = None,
) -> None:
    """Run every workload with every method, each case in a process of its own.

    Resumes where it stopped: finished cases are kept in OUTPUT.jsonl. A case that crashes is a row
    of the table. Gaps are those to the best bound that any method has proved. With --global-batch,
    or plans of training jobs as WORKLOADS: what is usually done beside them, planned or read.
    """
    check_outputs(output, inputs=workloads)
    check_table_file(output)
    record = None if output is None else output.with_name(output.name + RECORD)
    if scheduler is not None and jobs is not None:
        raise InputError("--jobs: the scheduler's workers run the cases; leave one of the two out")
    requested = ProblemOptions(
        None, settings or (), cluster, accelerators, cpus, memory, split, microbatches,
        schedule, mesh, launcher,
    )  # fmt: skip
    files = [name for name in workloads if is_job_plan(name)]
    if global_batch is not None or files:
        others = {"--methods": methods, "--problem": problems, "--jobs": jobs, "--plot": plot,
                  "--scheduler": scheduler}  # fmt: skip
        ends = {"seconds": time_limit, "gap": gap}
        _compare_jobs(workloads, files, requested, (global_batch, sequence), ends, output, others)
        return
    if sequence is not None:
        raise InputError("--sequence: it is for training jobs; give --global-batch, too")
    listed = None if methods is None else [m.strip() for m in methods.split(",") if m.strip()]
    todo, read = _cases(workloads, requested, problems, listed, time_limit, gap)
    check_outputs(output, record, pictures=[plot], inputs=[*workloads, *read])
    _finish(todo, output, jobs or 1, scheduler, plot)


def _compare_jobs(
    names: Sequence[str],
    files: Sequence[str],
    requested: ProblemOptions,
    batch: tuple[int | None, int | None],
    ends: Mapping[str, float | None],
    output: Path | None,
    others: Mapping[str, object],
) -> None:
    """Compare planned models, or plans in files, with layouts by common rules."""
    from .job import PLAN_SAYS, compare_jobs, state_job

    global_batch, sequence = batch
    if global_batch is not None:
        if files:
            raise InputError(f"{files[0]}: it is a plan; leave --global-batch out")
        posed = state_job(names, requested, global_batch, sequence, ends, others)
        compare_jobs(names, posed, output)
        return
    if len(files) < len(names):
        other = next(name for name in names if name not in files)
        raise InputError(f"{other}: it is no plan of a training job, and others are; leave it out")
    ended = {"--sequence": sequence, "--time-limit": ends["seconds"], "--gap": ends["gap"]}
    refuse({**others, **ended, **requested.given}, PLAN_SAYS)
    compare_jobs(names, None, output)


def _cases(
    names: Sequence[str],
    requested: ProblemOptions,
    problems: Sequence[str] | None,
    listed: Sequence[str] | None,
    time_limit: float | None,
    gap: float | None,
) -> tuple[list[Case], set[str]]:
    """Return every problem on every workload with every method, and the files read for them.

    InputError before any case runs.
    """
    loaded = {name: load_workload(name) for name in names}
    called = unique_names(list(loaded))
    labels = [Path(one).stem for one in problems or ()]
    if len(set(labels)) < len(labels):
        raise InputError("--problem: two have one name; give each a file of its own name")
    todo: list[Case] = []
    read: set[str] = set()
    asked: set[str] = set()
    wanted: Sequence[str | None] = problems or (None,)
    for one in wanted:
        for name, given in loaded.items():
            own = replace(requested, problem=one)
            stated = state(own, given, (LIMITS,))
            if WORKERS in stated.others:
                raise InputError(
                    f"{stated.file}: {WORKERS}: a case has one process; leave the table out"
                )
            stated, own = narrow_for_launcher(stated, own, given)
            workload, problem, devices = build(stated, own, given)
            label = Path(one).stem if one is not None and len(labels) > 1 else stated.name
            limits = limits_of(stated, time_limit, gap)
            todo += [
                Case(
                    called[name], workload, label, with_rings(stated, problem, method), method,
                    devices, limits,
                )
                for method in _methods(stated.name, listed, stream=is_stream(problem))
            ]  # fmt: skip
            read.update(stated.files)
            asked.add(stated.name)
    for method in listed or ():
        known = [one for one in asked if method.partition(":")[0] in METHODS[one]]
        method_of(min(known or asked), method)  # raises if none has it
    if not todo:
        raise InputError("compare: give at least one method")
    return todo, read


def unique_names(workloads: Sequence[str]) -> dict[str, str]:
    """Return a short name for each path: its stem, with as many folders as tell it from others.

    Examples
    --------
    >>> unique_names(["a/net.json", "b/net.json", "b/big.json"])["b/net.json"]
    'b/net'
    """
    names = {}
    for path in workloads:
        parts = Path(path).with_suffix("").parts
        for length in range(1, len(parts) + 1):
            tail = parts[-length:]
            alike = [p for p in workloads if Path(p).with_suffix("").parts[-length:] == tail]
            names[path] = "/".join(tail)
            if len(alike) == 1:
                break
    return names


def _methods(problem: str, listed: Sequence[str] | None, *, stream: bool) -> list[str]:
    """Return the requested methods that a problem has, or its default ones."""
    usual = {
        "pipeline": DEFAULT_METHODS if stream else ("auto", *pipeline.RULES),
        "sharding": ("auto", *(r for r in sharding.RULES if r != "communication-only")),
        "mapping": ("auto", "layouts"),
    }
    wanted = usual.get(problem, DEFAULT_METHODS) if listed is None else listed
    return [method for method in wanted if method.partition(":")[0] in METHODS[problem]]


def _finish(
    todo: Sequence[Case],
    output: Path | None,
    jobs: int,
    scheduler: str | None,
    plot: Path | None,
) -> None:
    """Run the cases, and print and draw the results."""
    units = {case.name: case.workload.time_unit for case in todo}
    result = _run(todo, output, jobs, scheduler, set(units.values()))
    for line in summaries(result, units):
        OUT.print_line(line)
    if plot is not None:
        from ..runtime.pictures.charts import draw_comparison

        draw_comparison(result, plot)
    tell_written(output, plot)


def _run(
    todo: Sequence[Case],
    output: Path | None,
    jobs: int,
    scheduler: str | None,
    units: Set[str],
) -> pd.DataFrame:
    """Run the cases and show the growing table; without `output` it is not written."""
    if output is None:
        with TemporaryDirectory() as folder:
            return _run(todo, Path(folder) / "table.csv", jobs, scheduler, units)
    shown: list[Row] = []
    notices: list[str] = []

    with Live(_table(shown, len(todo), units), console=ERR, auto_refresh=False) as live:

        def show(row: Row) -> None:
            shown.append(row)
            live.update(_table(shown, len(todo), units), refresh=True)

        live.transient = True  # nothing is left of it if there is an error
        result = run_cases(
            todo, output, jobs=jobs, scheduler=scheduler, on_row=show, on_notice=notices.append
        )
        live.transient = False
    if not ERR.is_terminal:
        ERR.line()  # a file gets the last table alone, which rich leaves without an end of line
    for notice in notices:
        ERR.print_line(notice)
    return result


def _table(rows: Sequence[Row], cases: int, units: Set[str]) -> Group:
    """Return the table so far, and below it each reason why methods have no plan."""
    found = tabulate(rows).to_dict("records") if rows else []
    columns = [name for name in ("workload", "problem") if len({row[name] for row in found}) > 1]
    alone = [name for name in ("workload", "problem") if found and name not in columns]
    table = Table(
        title=", ".join(found[0][name] for name in alone), caption=f"{len(rows)} of {cases} cases"
    )
    for name in (*columns, "method", "status"):
        table.add_column(name, overflow="fold")
    unit = next(iter(units - {UNSPECIFIED}), "") if len(units) == 1 else ""
    for name in (f"objective ({unit})" if unit else "objective", "best bound", "gap", "seconds"):
        table.add_column(name, justify="right")
    why = []
    for alike in _alike(found):
        table.add_row(*(alike[0][name] for name in columns), *_cells(alike))
        if reason := _reason(alike[0]):
            row, methods = alike[0], ", ".join(row["method"] for row in alike)
            why.append(f"{row['workload']}, {row['problem']}: {methods}: {reason}")
    fits(table, ERR.width)
    return Group(table, *(Text(plain(line)) for line in why))


def _alike(rows: Iterable[Mapping[Hashable, Any]]) -> list[list[Mapping[Hashable, Any]]]:
    """Return the rows in groups; rows without a plan for the same reason share one."""
    found: dict[tuple[str, ...], list[Mapping[Hashable, Any]]] = {}
    for row in rows:
        reason = _reason(row)
        own = f"{row['status']}: {reason}" if reason else f"method {row['method']}"
        found.setdefault((row["workload"], row["problem"], own), []).append(row)
    return list(found.values())


def _reason(row: Mapping[Hashable, Any]) -> str:
    """Return the reason for no plan, without the method's name before it; empty with a plan."""
    if not isinstance(row["error"], str):
        return ""
    method = row["method"].partition(":")[0]
    return row["error"].removeprefix(f"{row['method']}: ").removeprefix(f"{method}: ")


def _cells(alike: Sequence[Mapping[Hashable, Any]]) -> list[str]:
    """Return the cells of rows that are shown as one; missing values are empty."""
    row = alike[0]
    seconds = [float(one["seconds"]) for one in alike if not math.isnan(one["seconds"])]

    def number(value: float, form: str) -> str:
        return "" if math.isnan(value) else format(value, form)

    gap = float(row["gap"])
    return [
        ", ".join(one["method"] for one in alike),
        row["status"],
        number(row["objective"], ".6g"),
        number(row["best_bound"], ".6g"),
        "" if math.isnan(gap) else show_gap(gap),
        number(sum(seconds) if seconds else math.nan, ".2f"),
    ]
