"""Output of mappings: a row per stage, the busiest link, the certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from ...instances import DeviceMapping, ReplicaPlacement, Workload
from ...instances.common.units import TIME_UNITS
from ..common.console import OUT, show_time
from .plan import as_dict, print_end

if TYPE_CHECKING:
    from ...instances.topologies import Topology
    from ...runtime import Report
    from ...solvers import Result

#: Devices named per stage; of more, the first ones and how many there are.
NAMED = 4


def answer(
    workload: Workload, problem: DeviceMapping, result: Result, report: Report | None
) -> dict[str, Any]:
    """Return the object for `--json`: the keys of solve, the stages, and the busiest link."""
    from ...runtime.verify.report import MappingReport

    found = as_dict(workload, problem, result, report)
    if not isinstance(report, MappingReport) or result.plan is None:
        return found
    solution = result.plan.solution
    assert isinstance(solution, ReplicaPlacement)
    unit = TIME_UNITS[workload.time_unit]
    topology = problem.topology
    found["stages"] = [
        {
            "devices": [topology.devices[d] for d in row],
            "sends_to": solution.sends_to[s].tolist() if s + 1 < problem.stages else [],
            "compute": stage.compute_s / unit,
            "transfer": stage.transfer_s / unit,
            "allreduce": stage.allreduce_s / unit,
            "allreduce_by": stage.allreduce_by,
            "time": stage.total_s / unit,
        }
        for s, (row, stage) in enumerate(zip(solution.slots.tolist(), report.mapped, strict=True))
    ]
    link = report.busiest_link
    found["busiest_link"] = link and {
        "from": node_name(topology, link[0]),
        "to": node_name(topology, link[1]),
        "time": report.busiest_link_s / unit,
    }
    return found


def node_name(topology: Topology, node: int) -> str:
    """Return the display name of a device or switch."""
    if node < topology.size:
        return topology.devices[node]
    return f"switch {node - topology.size}"


def print_mapping(
    workload: Workload, problem: DeviceMapping, result: Result, report: Report | None
) -> None:
    """Print a row per stage, the busiest link, objective, bound and gap."""
    from ...runtime.verify.report import MappingReport

    unit = workload.time_unit
    if isinstance(report, MappingReport) and result.plan is not None:
        solution = result.plan.solution
        assert isinstance(solution, ReplicaPlacement)
        topology = problem.topology
        table = Table(title=f"{workload.name} on {topology.name}, {problem.mode}")
        table.add_column("stage", justify="right")
        for title in (f"time ({unit})", "compute", "transfer", "all-reduce"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("by")
        table.add_column("devices")
        worst = max(stage.total_s for stage in report.mapped)
        scale = TIME_UNITS[unit]
        for s, stage in enumerate(report.mapped):
            row = [topology.devices[d] for d in solution.slots[s].tolist()]
            more = f" … ({len(row)})" if len(row) > NAMED else ""
            table.add_row(
                str(s),
                f"{stage.total_s / scale:.6g}",
                f"{stage.compute_s / scale:.6g}",
                f"{stage.transfer_s / scale:.4g}",
                f"{stage.allreduce_s / scale:.4g}",
                stage.allreduce_by,
                "; ".join(row[:NAMED]) + more,
                style="bold" if stage.total_s == worst else "",
            )
        OUT.print(table)
        if report.busiest_link is not None:
            a, b = (node_name(topology, node) for node in report.busiest_link)
            seconds = show_time(report.busiest_link_s / scale, unit)
            OUT.print(f"busiest link: {a} → {b}, {seconds} per batch", highlight=False)
    print_end(
        workload,
        result,
        report,
        "for the busiest link" if problem.objective == "busiest-link" else "per batch",
    )
