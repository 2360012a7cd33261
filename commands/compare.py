"""`stagecut compare`: methods against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from ..api.case_record import RECORD
from ..api.cases import cases, run_cases
from ..api.compare import Row
from ..instances import InputError, Split, Throughput, Workload
from ..instances.formats.files import load
from ..solvers import METHODS, Limits
from ..solvers.core.limits import DEFAULT_GAP, DEFAULT_SECONDS
from .console import ERR, OUT, check_outputs, parse_bytes
from .pose import choose_cluster, pose_problem

#: Methods to compare unless told otherwise, where the objective has them.
DEFAULT_METHODS = ("auto", "dp", "milp", "greedy", "local-search")


def compare(
    workloads: Annotated[list[str], typer.Argument(help="Files, or names of shipped workloads.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The table, as CSV.")],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas; default: of auto, dp, milp, greedy and "
            "local-search those that the objective has."
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="throughput, latency, training or training-batch; default: as for solve."
        ),
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for each case.")] = DEFAULT_SECONDS,
    gap: Annotated[float, typer.Option(help="A case stops at this gap.")] = DEFAULT_GAP,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    split: Annotated[Split | None, typer.Option(help="Default: noncontiguous.")] = None,
    accelerators: Annotated[int | None, typer.Option(help="Number of accelerators.")] = None,
    cpus: Annotated[int | None, typer.Option(help="Number of CPU cores.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of each accelerator, such as 16GiB.")
    ] = None,
    cluster: Annotated[Path | None, typer.Option(help="A cluster file, instead.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Cases at a time; default: 1.", min=1)] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler that runs the cases.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the comparison: .png or .svg.")] = None,
) -> None:
    """Run every workload with every method, each case in a process of its own.

    Resumes where it stopped: finished cases are kept in OUTPUT.jsonl; its damaged lines are set
    aside, and their cases run again. A case that crashes is a row of the table.
    """
    check_outputs(output)
    record = output.with_name(output.name + RECORD)
    check_outputs(output, record, pictures=[plot], inputs=[*workloads, cluster])
    if scheduler is not None and jobs is not None:
        raise InputError("--jobs: the scheduler's workers run the cases; leave one of the two out")
    loaded = {name: load(name) for name in workloads}
    objective = objective or _objective_of(loaded)
    options = ["--gap", str(gap), "--seed", str(seed)]
    Limits(seconds=time_limit, gap=gap, seed=seed)  # these raise here, not in every case
    problem = pose_problem(
        objective, {"throughput": {"split": split}, "latency": {}, "training": {}}
    )
    if isinstance(problem, Throughput):
        options += ["--split", problem.split]
    for known in loaded.values():
        choose_cluster(known, cluster, accelerators, cpus, parse_bytes(memory, "--memory"))
    for option, value in (("accelerators", accelerators), ("cpus", cpus), ("memory", memory)):
        options += [] if value is None else [f"--{option}", str(value)]
    if methods is None:
        names = [method for method in DEFAULT_METHODS if method in METHODS[problem.name]]
    else:
        names = [m.strip() for m in methods.split(",") if m.strip()]
    todo = cases(workloads, names, options, time_limit, objective=objective, cluster=cluster)
    table = _empty_table()
    shown: list[Row] = []
    notices: list[str] = []

    with Live(table, console=ERR, auto_refresh=False) as live:

        def show(row: Row) -> None:
            shown.append(row)
            table.add_row(*_cells(row))
            table.caption = f"{len(shown)} of {len(todo)} cases"
            live.refresh()

        live.transient = True  # nothing is left of it if there is an error
        result = run_cases(
            todo, output, jobs=jobs or 1, scheduler=scheduler, on_row=show, on_notice=notices.append
        )
        live.transient = False
    for notice in notices:
        ERR.print(notice, highlight=False, soft_wrap=True)
    if plot is not None:
        from ..runtime.pictures.comparison_chart import draw_comparison

        draw_comparison(result, plot)
    OUT.print(f"written: {output}" + (f", {plot}" if plot else ""), highlight=False, soft_wrap=True)


def _objective_of(workloads: dict[str, Workload]) -> str:
    """Return what `solve` plans all workloads for."""
    layered = {workload.layers is not None for workload in workloads.values()}
    if len(layered) > 1:
        raise InputError(
            "--objective: some workloads have layer configurations, others not; give it"
        )
    return "training" if layered == {True} else "throughput"


def _empty_table() -> Table:
    table = Table("workload", "method", "status")
    for title in ("objective", "bound", "gap", "seconds"):
        table.add_column(title, justify="right")
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    def number(key: str, form: str) -> str:
        value = row.get(key)
        return "" if value is None else format(value, form)

    status = row["status"] if "error" not in row else f"{row['status']}: {row['error']}"
    cells = [row["workload"], row["method"], status]
    cells += [number("objective", ".6g"), number("bound", ".6g")]
    return [*cells, number("gap", ".3%"), number("seconds", ".2f")]
