"""`stagecut compare`: methods against each other."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..api.case_record import RECORD
from ..api.cases import ComparisonCase, cases, run_cases
from ..api.compare import Row, summaries, tabulate
from ..instances import InputError, PipelineJob, Throughput, Workload
from ..instances.common.escape import plain
from ..instances.formats.files import load
from ..instances.formats.source import read_source
from ..solvers import METHODS
from ..solvers.core.limits import DEFAULT_SECONDS, limits_for
from ..solvers.job.methods import RULES
from .common import names, options
from .common.console import ERR, OUT, check_outputs, parse_bytes, show_gap, tell_written
from .common.mesh_cases import USUAL, sharding_cases
from .common.pose import (
    check_schedule_file,
    choose_cluster,
    choose_objective,
    pose_problem,
    read_schedule,
    with_rules,
)
from .common.runnable import kept_together

if TYPE_CHECKING:
    import pandas as pd

#: Methods to compare unless told otherwise, where the objective has them.
DEFAULT_METHODS = ("auto", "dp", "milp", "greedy", "local-search")


def compare(
    workloads: Annotated[list[str], typer.Argument(help="Files, or names of shipped workloads.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The table, as CSV; resumed if it exists.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.complete_methods,
            help="Methods, separated by commas; default: of auto, dp, milp, greedy and "
            "local-search those that the objective has, of jobs without layer configurations auto "
            "and what frameworks do. "
            + names.methods_help(*names.SOLVED)
            + ". deepspeed-type:REGEX counts the modules whose name matches.",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.OBJECTIVE,
            help="throughput, job or latency; default: as for solve.",
        ),
    ] = None,
    microbatches: options.Microbatches = None,
    schedule: Annotated[
        str | None,
        typer.Option(autocompletion=names.SCHEDULE, help=options.SCHEDULES),
    ] = None,
    chunks: options.Chunks = None,
    calls: options.Calls = None,
    tied: options.TiedWeights = None,
    overlap: options.Overlap = None,
    relayed: options.Relayed = None,
    runnable: options.Runnable = False,
    pin: options.Pin = None,
    together: options.Together = None,
    apart: options.Apart = None,
    fixed: options.Fixed = None,
    max_stages: options.MaxStages = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for each case.")] = DEFAULT_SECONDS,
    gap: Annotated[
        float | None, typer.Option(help="A case stops at this gap; default: as for solve.")
    ] = None,
    seed: options.Seed = 0,
    split: options.PipelineSplit = None,
    accelerators: options.Accelerators = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    cluster: options.ClusterFile = None,
    mesh: Annotated[
        str | None,
        typer.Option(help="Compare shardings over devices: 4, 2x2, or several: 4,2x2,8."),
    ] = None,
    links: Annotated[
        str | None, typer.Option(help="With --mesh: of each axis, or one for all; as for shard.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Cases at a time; default: 1.", min=1)] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler that runs the cases.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the comparison: .png or .svg.")] = None,
) -> None:
    """Run every workload with every method, each case in a process of its own.

    Resumes where it stopped: finished cases are kept in OUTPUT.jsonl; its damaged lines are set
    aside, and their cases run again. A case that crashes is a row of the table. Gaps are those to
    the best bound that any method has proved.
    """
    asked = read_schedule(schedule, microbatches)
    check_outputs(output)
    record = None if output is None else output.with_name(output.name + RECORD)
    check_outputs(output, record, pictures=[plot], inputs=[*workloads, cluster, asked.file, fixed])
    if scheduler is not None and jobs is not None:
        raise InputError("--jobs: the scheduler's workers run the cases; leave one of the two out")
    loaded = {name: load(name) for name in workloads}
    if mesh is not None or links is not None:
        others = {
            "objective": objective, "microbatches": microbatches, "schedule": schedule,
            "chunks": chunks, "calls": calls, "tied": tied, "overlap": overlap, "relayed": relayed,
            "runnable": runnable or None, "pin": pin, "together": together, "apart": apart,
            "fixed": fixed, "max_stages": max_stages, "split": split, "accelerators": accelerators,
            "cpus": cpus, "cluster": cluster,
        }  # fmt: skip
        _refuse_beside_mesh(mesh, [key for key, value in others.items() if value is not None])
        typed = ["--seed", str(seed), *_typed({"gap": gap, "memory": memory})]
        limits_for("sharding", time_limit, gap, seed=seed)
        todo = sharding_cases(
            loaded, str(mesh), links, memory, _listed(methods, USUAL), typed, time_limit
        )
        _finish(todo, loaded, output, jobs or 1, scheduler, plot)
        return
    objective = _objective_of(loaded, objective, asked.microbatches)
    check_schedule_file(asked, objective)
    batch = {"microbatches": microbatches, "schedule": schedule}
    placing = {"split": split, "overlap": overlap, "relayed": relayed}
    problem = pose_problem(
        objective,
        {
            "throughput": placing,
            "latency": {"calls": calls},
            "pipeline": {
                **placing,
                **batch,
                "microbatches": asked.microbatches,
                "schedule": asked.schedule,
                "actions": asked.actions,
                "chunks": chunks,
            },
        },
    )
    limits_for(problem.name, time_limit, gap, seed=seed)  # raises here, not in every case
    typed = ["--seed", str(seed), *_typed({"gap": gap})]
    if isinstance(problem, Throughput):
        typed += ["--split", problem.split]
    else:
        typed += _typed({"split": split, **batch, "chunks": chunks, "calls": calls})
    typed += _typed({"tied": tied, "overlap": overlap, "relayed": relayed, "runnable": runnable})
    about = {"pin": pin, "together": together, "apart": apart}
    size = parse_bytes(memory, "--memory")
    for known in loaded.values():
        if runnable:
            kept_together(known)  # raises
        if isinstance(problem, PipelineJob):
            problem.for_workload(known)  # raises
        devices = choose_cluster(known, cluster, accelerators, cpus, size, objective)
        with_rules(problem, devices, **about, max_stages=max_stages, fixed=fixed, file=cluster)
    for option, texts in about.items():
        typed += [word for text in texts or () for word in (f"--{option}", text)]
    typed += _typed({"max_stages": max_stages, "fixed": fixed})
    typed += _typed({"accelerators": accelerators, "cpus": cpus, "memory": memory})
    layered = any(known.layers is not None for known in loaded.values())
    usual = ("auto", *RULES) if problem.name == "pipeline" and not layered else DEFAULT_METHODS
    names = _listed(methods, [method for method in usual if method in METHODS[problem.name]])
    todo = cases(
        workloads,
        names,
        typed,
        time_limit,
        objective=objective,
        cluster=cluster,
        given="\n".join((*(asked.actions or ()), *([read_source(fixed).text] if fixed else []))),
    )
    _finish(todo, loaded, output, jobs or 1, scheduler, plot)


def _listed(methods: str | None, usual: Sequence[str]) -> list[str]:
    """Return the methods that are asked for."""
    return list(usual) if methods is None else [m.strip() for m in methods.split(",") if m.strip()]


def _refuse_beside_mesh(mesh: str | None, given: Sequence[str]) -> None:
    if mesh is None:
        raise InputError("--links: they are those of a mesh; give --mesh, too")
    for key in given:
        option = f"--{key.replace('_', '-')}"
        raise InputError(f"{option}: a sharding over a --mesh has none; leave it out")


def _finish(
    todo: Sequence[ComparisonCase],
    loaded: Mapping[str, Workload],
    output: Path | None,
    jobs: int,
    scheduler: str | None,
    plot: Path | None,
) -> None:
    """Run the cases, and say and draw what came of them."""
    result = _run(todo, output, jobs, scheduler)
    units = {case.name: loaded[case.workload].time_unit for case in todo}
    for line in summaries(result, units):
        OUT.print(line, highlight=False, soft_wrap=True)
    if plot is not None:
        from ..runtime.pictures.charts import draw_comparison

        draw_comparison(result, plot)
    tell_written(output, plot)


def _run(
    todo: Sequence[ComparisonCase], output: Path | None, jobs: int, scheduler: str | None
) -> pd.DataFrame:
    """Run the cases and show the table as it grows; without output nothing of it is kept."""
    if output is None:
        with TemporaryDirectory() as folder:
            return _run(todo, Path(folder) / "table.csv", jobs, scheduler)
    shown: list[Row] = []
    notices: list[str] = []

    with Live(_table(shown, len(todo)), console=ERR, auto_refresh=False) as live:

        def show(row: Row) -> None:
            shown.append(row)
            live.update(_table(shown, len(todo)), refresh=True)

        live.transient = True  # nothing is left of it if there is an error
        result = run_cases(
            todo, output, jobs=jobs, scheduler=scheduler, on_row=show, on_notice=notices.append
        )
        live.transient = False
    if not ERR.is_terminal:
        ERR.line()  # a file gets the last table alone, which rich leaves without an end of line
    for notice in notices:
        ERR.print(notice, highlight=False, soft_wrap=True)
    return result


def _typed(values: Mapping[str, object]) -> list[str]:
    """Return options of `solve` as typed, those left out that are not given."""
    found = []
    for key, value in values.items():
        if value is not None and value is not False:
            found.append(f"--{key.replace('_', '-')}")
            found += [] if value is True else [str(value)]
    return found


def _objective_of(
    workloads: Mapping[str, Workload], asked: str | None, microbatches: int | None
) -> str:
    """Return what `solve` plans all workloads for."""
    chosen = {choose_objective(workload, asked, microbatches) for workload in workloads.values()}
    if len(chosen) > 1:
        raise InputError(
            f"--objective: for some workloads it is {', for others '.join(sorted(chosen))}; give it"
        )
    return chosen.pop() if chosen else "throughput"


def _table(rows: Sequence[Row], cases: int) -> Group:
    """Return the table so far, and below it why methods have no plan, each reason once."""
    table = Table(
        "workload", "problem", "method", "status", caption=f"{len(rows)} of {cases} cases"
    )
    for title in ("objective", "best bound", "gap", "seconds"):
        table.add_column(title, justify="right")
    why = []
    for alike in _alike(tabulate(rows).to_dict("records") if rows else ()):
        table.add_row(*_cells(alike))
        if reason := _reason(alike[0]):
            row, methods = alike[0], ", ".join(row["method"] for row in alike)
            why.append(f"{row['workload']}, {row['problem']}: {methods}: {reason}")
    return Group(table, *(Text(plain(line)) for line in why))


def _alike(rows: Iterable[Mapping[Hashable, Any]]) -> list[list[Mapping[Hashable, Any]]]:
    """Return the rows, those together that end alike and have no plan for one reason."""
    found: dict[tuple[str, ...], list[Mapping[Hashable, Any]]] = {}
    for row in rows:
        reason = _reason(row)
        own = f"{row['status']}: {reason}" if reason else f"method {row['method']}"
        found.setdefault((row["workload"], row["problem"], own), []).append(row)
    return list(found.values())


def _reason(row: Mapping[Hashable, Any]) -> str:
    """Return why there is no plan, without the method's name before it; empty if there is one."""
    if not isinstance(row["error"], str):
        return ""
    method = row["method"].partition(":")[0]
    return row["error"].removeprefix(f"{row['method']}: ").removeprefix(f"{method}: ")


def _cells(alike: Sequence[Mapping[Hashable, Any]]) -> list[str]:
    """Return the cells of rows that are shown as one; what none has is empty."""
    row = alike[0]
    seconds = [float(one["seconds"]) for one in alike if not math.isnan(one["seconds"])]

    def number(value: float, form: str) -> str:
        return "" if math.isnan(value) else format(value, form)

    gap = float(row["gap"])
    return [
        row["workload"],
        row["problem"],
        ", ".join(one["method"] for one in alike),
        row["status"],
        number(row["objective"], ".6g"),
        number(row["best_bound"], ".6g"),
        "" if math.isnan(gap) else show_gap(gap),
        number(sum(seconds) if seconds else math.nan, ".2f"),
    ]
