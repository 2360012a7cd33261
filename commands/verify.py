"""`stagecut verify`: check a plan from the definition."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..instances.files import load, load_plan
from ..runtime import verify as verify_plan
from .console import OUT, print_json, show_bytes, show_gap, show_time


def verify(
    workload: Annotated[str, typer.Argument(help="A file, or the name of a shipped workload.")],
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recompute objective, memory, colours, support and contiguity of PLAN, from the definition.

    Exit code 2 if the plan breaks a rule, or was made for something else.
    """
    loaded = load(workload)
    checked = load_plan(plan, loaded)
    report = verify_plan(loaded, checked)
    if as_json:
        print_json(
            {
                "workload": loaded.name,
                "verified": True,
                "objective": report.objective,
                "bound": checked.bound,
                "gap": checked.gap,
            }
        )
        return
    used = max(report.devices, key=lambda d: d.memory_bytes / d.capacity_bytes)
    OUT.print(
        f"verified: objective {show_time(report.objective, loaded.time_unit)}, "
        f"claimed bound {show_time(checked.bound, loaded.time_unit)}, gap {show_gap(checked.gap)}; "
        f"fullest device {used.name} with {show_bytes(used.memory_bytes)} "
        f"of {show_bytes(used.capacity_bytes)}",
        highlight=False,
        soft_wrap=True,
    )
