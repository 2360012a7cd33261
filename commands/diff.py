"""`stagecut diff`: two plans side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..instances import InputError
from ..instances.formats.outline import read_outline
from ..instances.formats.source import read_source
from .common import options
from .common.console import OUT, print_json, show_count, show_gap, show_time

if TYPE_CHECKING:
    from ..runtime.diff import PlanDiff

#: Nodes that moved, listed at most.
LISTED = 12


def diff(
    first: Annotated[Path, typer.Argument(help="A plan file.")],
    second: Annotated[Path, typer.Argument(help="Another plan file for the same workload.")],
    as_json: options.AsJson = False,
) -> None:
    """Show two plans side by side: objectives, devices, and the nodes that moved.

    Devices of one kind are alike, so each is paired with the one that does most of the same.
    """
    from ..instances.job.plan import is_job_plan
    from ..runtime.diff import diff as compare_plans

    jobs = is_job_plan(first), is_job_plan(second)
    if jobs[0] != jobs[1]:
        other = second if jobs[0] else first
        read_source(other)  # what is no file is told first
        raise InputError(f"{other}: it is no plan of a training job; name two plans of a kind")
    if all(jobs):
        from .job import diff_plans

        diff_plans(first, second, as_json=as_json)
        return
    result = compare_plans(read_outline(first), read_outline(second))
    if as_json:
        print_json(as_dict(result))
    else:
        _print(result, first.name, second.name)


def as_dict(result: PlanDiff) -> dict[str, Any]:
    """Return the object for `--json`."""
    sides = {
        name: {
            "objective": side.objective,
            "bound": side.bound,
            "method": side.method,
            "problem": side.problem,
        }
        for name, side in (("first", result.first), ("second", result.second))
    }
    return {
        "workload": result.first.workload[0],
        "time_unit": result.first.time_unit,
        **sides,
        "devices": [
            {"first": p.first, "second": p.second, "nodes": list(p.nodes), "common": p.common}
            for p in result.pairs
        ],
        "moved": [{"node": v, "from": a, "to": b} for v, a, b in result.moved],
    }


def _print(result: PlanDiff, first: str, second: str) -> None:
    table = Table(title=result.first.workload[0])
    for title in ("", first, second):
        table.add_column(title, justify="right" if title else "left", min_width=13)
    a, b = result.first, result.second
    table.add_row("objective", *(show_time(side.objective, side.time_unit) for side in (a, b)))
    table.add_row("bound", *(show_time(side.bound, side.time_unit) for side in (a, b)))
    table.add_row("gap", show_gap(a.gap), show_gap(b.gap))
    table.add_row("problem", a.problem, b.problem)
    table.add_row("method", a.method, b.method, end_section=True)
    for pair in result.pairs:
        cells = [
            f"{name}: {show_count(nodes, 'node')}" if name else "–"
            for name, nodes in zip((pair.first, pair.second), pair.nodes, strict=True)
        ]
        table.add_row(f"{pair.common} alike", *cells)
    OUT.print(table)
    moved = len(result.moved)
    OUT.print_wrapped(f"{show_count(moved, 'node')} moved" + (":" if moved else ""))
    for v, source, target in result.moved[:LISTED]:
        OUT.print_wrapped(f"  {v}: {source} → {target}")
    if moved > LISTED:
        OUT.print_wrapped(f"  … and {moved - LISTED} more (--json lists all)")
