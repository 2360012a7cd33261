"""`stagecut instances`: the workloads that come with Stagecut, and conversions between formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..instances import Tied
from ..instances.formats.files import load, save
from ..instances.generate.catalogue import CATALOGUE, LARGE
from ..instances.generate.published import SERVER, published_folder
from ..instances.generate.published import fetch as fetch_files
from ..instances.model.completed import filled
from ..instances.model.tied_weights import tied_as
from ..instances.model.training_layers import training_layers
from .common import options
from .common.console import ERR, OUT, check_outputs, parse_rate, print_json, show_bytes, show_count

app = typer.Typer(help="List, show and convert workloads.", no_args_is_help=True)


@app.command("list")
def list_instances(as_json: options.AsJson = False) -> None:
    """List the workloads that come with Stagecut."""
    entries = [(name, entry.title) for name, entry in sorted(CATALOGUE.items())]
    if as_json:
        print_json({"workloads": [{"name": name, "title": title} for name, title in entries]})
        return
    table = Table()
    longest = max(len(name) for name, _ in entries)
    table.add_column("name", no_wrap=True, min_width=longest)  # it is there to be typed
    table.add_column("what it is")
    for name, title in entries:
        table.add_row(name, title)
    OUT.print(table)
    OUT.print("Larger ones, as:", *LARGE, sep="\n  ", highlight=False, soft_wrap=True)


@app.command()
def show(
    workload: options.WorkloadArgument,
    as_json: options.AsJson = False,
) -> None:
    """Show how large a workload is and where it comes from."""
    loaded = load(workload)
    facts: dict[str, object] = {
        "name": loaded.name,
        "nodes": loaded.n,
        "edges": len(loaded.edges),
        "backward_nodes": int(loaded.backward.sum()),
        "colours": len(loaded.colour_labels),
        "memory_bytes": float(loaded.memory_bytes.sum()),
        "time_unit": loaded.time_unit,
    }
    facts |= {
        f"time_on_{kind}": float(t[t < float("inf")].sum()) for kind, t in loaded.times.items()
    }
    facts |= {
        f"total_{key}": float(values.sum())
        for key, values in loaded.extra.items()
        if key != "spread"  # of measured times, relative: sums of it mean nothing
    }
    if loaded.cluster is not None:
        facts["cluster"] = ", ".join(f"{k.count} × {k.name}" for k in loaded.cluster.kinds)
    facts |= loaded.provenance
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        text = show_bytes(value) if key.endswith("bytes") and isinstance(value, float) else value
        text = f"{text:,.6g}" if isinstance(text, float) else text
        OUT.print_line(f"{key.replace('_', ' '):>24}  {text}")


@app.command()
def convert(
    workload: options.WorkloadArgument,
    output: Annotated[Path, typer.Argument(help="The file to write, in Stagecut's own JSON.")],
    layers: Annotated[
        bool, typer.Option("--layers", help="As layers for training plans: backward nodes merged.")
    ] = False,
    tied: Annotated[
        Tied | None,
        typer.Option(
            help="Weights used twice become copies, or one colour (one device); default: unchanged."
        ),
    ] = None,
    time_unit: Annotated[
        str | None, typer.Option(help="Unit of time if the file names none: s, ms, us or ns.")
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="Bandwidth of transfers if the file names none, such as 25GB/s."),
    ] = None,
    weight_share: Annotated[
        float | None,
        typer.Option(help="Share of a node's memory that is weights, if the file names none."),
    ] = None,
) -> None:
    """Write a workload as Stagecut's own JSON."""
    check_outputs(output, inputs=[workload])
    rate = None if bandwidth is None else parse_rate(bandwidth, "--bandwidth")
    loaded = filled(load(workload), time_unit, rate, weight_share)
    if tied is not None and not loaded.ties:
        kept = (
            "; its colours, which name no weights, stay together"
            if any(len(nodes) > 1 for nodes in loaded.colour_classes)
            else ""
        )
        text = f"--tied: {loaded.name} names no tied weights{kept}"
        ERR.print_wrapped(text, style="dim")
    loaded = loaded if tied is None else tied_as(loaded, tied)
    save(training_layers(loaded) if layers else loaded, output)
    OUT.print_wrapped(f"written: {output}")


@app.command()
def fetch(
    suite: Annotated[str, typer.Argument(help="Only files whose path begins with this.")] = "",
    to: Annotated[Path | None, typer.Option(help="Folder; default: the user's cache.")] = None,
    mirror: Annotated[str, typer.Option(help="Server with the same paths.")] = SERVER,
) -> None:
    """Download the published suites, each file checked by its SHA-256."""
    folder = to or published_folder()
    with ERR.status("fetching …") as status:
        paths = fetch_files(
            folder, below=suite, server=mirror, on_file=lambda file: status.update(file.path)
        )
    OUT.print_line(f"{show_count(len(paths), 'file')} in {folder}")
