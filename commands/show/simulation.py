"""A simulation as people and programs read it: a row per device, makespan, steady state, bubble."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from ...instances import Workload
from ..common.console import OUT, show_bytes, show_percent, show_time

if TYPE_CHECKING:
    from ...runtime.simulate.result import Simulation


def as_dict(workload: Workload, run: Simulation) -> dict[str, Any]:
    """Return what `--json` prints."""
    table = run.to_pandas().reset_index()
    devices = [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]
    return {
        "workload": workload.name,
        "schedule": run.schedule.name,
        "microbatches": run.schedule.microbatches,
        "stages": run.stages.count,
        "makespan": run.makespan,
        "time_per_sample": run.time_per_sample,
        "bubble": run.bubble,
        "peak_memory": run.peak_memory,
        "time_unit": workload.time_unit,
        "devices": devices,
        "busiest_link": run.busiest_link and run.busiest_link[0],
        "links": run.link_load.reset_index().to_dict("records"),
        "over_memory": run.over_memory,
    }


def print_simulation(workload: Workload, run: Simulation) -> None:
    """Print the table of devices, then makespan, steady state, bubble and busiest link."""
    unit, microbatches, count = workload.time_unit, run.schedule.microbatches, run.stages.count
    batch = f"{microbatches} {'microbatch' if microbatches == 1 else 'microbatches'}"
    stages = f"{count} {'stage' if count == 1 else 'stages'}"
    table = Table(title=f"{workload.name}: {run.schedule.name}, {stages}, {batch}")
    table.add_column("device", no_wrap=True)
    compute = "compute" if unit == "unspecified" else f"compute ({unit})"
    for title in (compute, "transfer", "idle", "bubble", "in flight", "peak memory"):
        width = {compute: 8, "in flight": 6, "peak memory": 11}.get(title)  # these titles wrap
        table.add_column(title, justify="right", min_width=width or len(title), max_width=width)
    frame = run.to_pandas()
    for d in run.used:
        row = frame.iloc[d]
        table.add_row(
            run.stages.devices[d],
            f"{row['compute']:.5g}",
            f"{row['transfer']:.3g}",
            f"{row['idle']:.5g}",
            show_percent(row["bubble"]),
            f"{row['in_flight']:.0f}",
            show_bytes(float(row["peak_bytes"])),
        )
    OUT.print(table)
    rows = {
        "makespan": f"{show_time(run.makespan, unit)} for {batch}",
        "steady state": f"{show_time(run.time_per_sample, unit)} per microbatch",
        "bubble": show_percent(run.bubble, 2),
    }
    if run.network.overlap and not run.link_load.empty:
        rows["transfers"] = "beside compute; the table has what keeps a device busy"
    if run.busiest_link is not None:
        name, share = run.busiest_link
        alone = any(len(ring) > 1 for ring in run.stages.replicas)
        rows["busiest link"] = f"{name}, {show_percent(share)} of the makespan" + (
            ", by messages without all-reduces" if alone else ""
        )
    for name, value in rows.items():
        OUT.print(f"{name:>12}  {value}", highlight=False)
    for line in run.over_memory:
        OUT.print(f"warning: {line}", style="yellow", highlight=False, soft_wrap=True)
