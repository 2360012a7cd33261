"""`stagecut records`: the best known plan and bound of each published instance."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..api.records import SHIPPED, check_record, read_records, submit_record
from ..instances import InputError, VerificationError
from ..instances.generate.published import published_folder
from .common import options
from .common.console import OUT, print_json, show_count, show_gap

app = typer.Typer(help="List, check and better the records.", no_args_is_help=True)
Folder = Annotated[
    Path | None, typer.Option("--records", help="Folder; default: the records of Stagecut.")
]
Instances = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the published instances; default: where `instances fetch` puts them."
    ),
]


@app.command("list")
def list_records(folder: Folder = None, as_json: options.AsJson = False) -> None:
    """List instance, objective, bound and gap of every record."""
    records = read_records(folder or SHIPPED)
    if as_json:
        print_json({"records": [vars(record) | {"gap": record.gap} for record in records]})
        return
    table = Table()
    for title in ("instance", "asked", "objective", "bound", "gap", "published"):
        table.add_column(title, overflow="fold")  # names and numbers whole, on any terminal
    for r in records:
        numbers = (f"{r.objective:.8g}", f"{r.bound:.8g}", show_gap(r.gap))
        table.add_row(r.instance, r.asked, *numbers, r.published)
    OUT.print(table)


def _instances(given: Path | None) -> Path:
    """Return the folder of the published instances."""
    folder = given or published_folder()
    if not os.path.isdir(folder):  # `Path.is_dir` raises where a name is too long
        remedy = "check the path" if given else "`stagecut instances fetch` makes it"
        raise InputError(f"--instances {str(folder)!r}: no such folder; {remedy}")
    return folder


@app.command()
def check(
    instances: Instances = None,
    folder: Folder = None,
    below: Annotated[str, typer.Option(help="Only instances whose path begins with this.")] = "",
) -> None:
    """Verify every record from the definitions; exit code 2 if one is not as it says."""
    instances, folder = _instances(instances), folder or SHIPPED
    records = [r for r in read_records(folder) if r.instance.startswith(below)]
    wrong = []
    for record in records:
        try:
            check_record(record, folder, instances)
        except (InputError, VerificationError) as error:
            wrong.append(f"{record.instance}, {record.asked}: {error}")
            OUT.print_line(wrong[-1], style="red")
    if wrong or not records:
        raise InputError(f"{folder}: {len(wrong)} of {len(records)} records are not as they say")
    proved = sum(record.checked for record in records)
    OUT.print_wrapped(
        f"{show_count(len(records), 'record')} verified; "
        f"{show_count(proved, 'bound')} proved by certificates"
    )


@app.command()
def submit(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    instances: Instances = None,
    folder: Annotated[
        Path, typer.Option("--records", help="Folder of the records, in a clone of Stagecut.")
    ] = Path("records"),
    instance: Annotated[
        str,
        typer.Option(help="Its instance, as a path below --instances, if it has no record yet."),
    ] = "",
    asked: Annotated[str, typer.Option(help="A name for the question if it is new.")] = "",
    command: Annotated[str, typer.Option(help="The command that made the plan.")] = "",
) -> None:
    """Take PLAN into the records if it verifies and is better than what they have."""
    record, better = submit_record(
        plan, folder, _instances(instances), instance=instance, asked=asked, command=command
    )
    said = {"new": "a new record", "nothing": "not better than the record"}
    OUT.print_line(
        f"{said.get(better, f'better: {better}')}: {record.instance}, {record.asked}: objective "
        f"{record.objective:.8g}, bound {record.bound:.8g}, gap {show_gap(record.gap)}"
    )
