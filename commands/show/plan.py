"""Output of results: tables, and the object that `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ...instances import PipelinePlacement, Problem, Workload, is_iteration
from ...instances.common.quantities import show_proved
from ..common.console import ERR, OUT, new_table, show_bytes, show_time
from .pipeline import Facts, facts_json, facts_rows, iteration_table

if TYPE_CHECKING:
    from ...runtime import CallReport, DeviceReport, Report, StageReport
    from ...solvers import Result


def as_dict(
    workload: Workload,
    problem: Problem,
    result: Result,
    report: Report | None,
    facts: Facts | None = None,
) -> dict[str, Any]:
    """Return the object for `--json`; times in the workload's unit, sizes in bytes."""
    answer: dict[str, Any] = {
        "workload": workload.name,
        "problem": problem.name,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status,
        "limit": result.limit,
        "method": result.method,
        "bound_origin": result.bound_origin,
        "seconds": result.seconds,
        "time_unit": workload.time_unit,
        "verified": report is not None and not report.violations,
        "devices": [],
        "notes": list(result.notes),
        "reason": result.reason,
    }
    if report is not None:
        answer["devices"] = [_device(d) for d in report.devices] or [
            _stage(s) for s in report.stages
        ]
        if report.calls:
            answer["calls"] = [_call(call) for call in report.calls if call.number]
    if facts is not None:
        answer |= facts_json(facts, result)
    return answer


def _device(device: DeviceReport) -> dict[str, Any]:
    return {
        "name": device.name,
        "kind": device.kind,
        "load": device.load,
        "forward": device.forward,
        "backward": device.backward,
        "compute": device.compute,
        "transfer": device.transfer,
        "memory": device.memory_bytes,
        "capacity": device.capacity_bytes,
        "nodes": list(device.nodes),
    }


def _stage(stage: StageReport) -> dict[str, Any]:
    return {
        "name": f"stage {stage.number}",
        "kind": stage.kind,
        "load": stage.time,
        "time": stage.time,
        "compute": stage.compute,
        "transfer": stage.transfer,
        "synchronise": stage.synchronise,
        "replicas": stage.replicas,
        "tensor_degree": stage.degree,
        "recomputation": list(stage.recomputed),
        "in_flight": stage.in_flight,
        "memory": stage.memory_bytes,
        "memory_terms": stage.terms,
        "capacity": stage.capacity_bytes,
        "nodes": list(stage.nodes),
    }


def _call(call: CallReport) -> dict[str, Any]:
    return {
        "device": call.device_name,
        "number": call.number,
        "start": call.start,
        "finish": call.finish,
        "transfer_in": call.transfer_in,
        "compute": call.compute,
        "transfer_out": call.transfer_out,
        "nodes": list(call.nodes),
    }


def print_result(
    workload: Workload,
    result: Result,
    report: Report | None,
    facts: Facts | None = None,
    exports: str = "",
) -> None:
    """Print the table of devices, stages or calls, then objective, bound, gap, method, time.

    Parameters
    ----------
    exports
        Which launchers can take the plan; empty for no such line.
    """
    unit = workload.time_unit
    problem = None if result.plan is None else result.plan.problem
    what = "per microbatch as profiled"
    if report is not None:
        of_unit = "" if unit == "unspecified" else f" ({unit})"
        title = f"{workload.name}: {workload.n} nodes, {len(workload.edges)} edges"
        if report.stages:
            OUT.print(_stage_table(report, title, of_unit))
            what = "per microbatch"
        elif report.calls:
            OUT.print(_call_table(report, title, of_unit))
            what = "for one request"
        elif (
            result.plan is not None
            and is_iteration(problem)
            and isinstance(result.plan.solution, PipelinePlacement)
        ):
            OUT.print(iteration_table(report, problem, result.plan.solution, title, of_unit))
            each = show_time(report.objective / problem.batch, unit)
            named = "the schedule given" if problem.order else problem.schedule
            what = (
                f"per iteration of {problem.batch} microbatches under {named}, "
                f"{each} per microbatch as profiled"
            )
        else:
            OUT.print(_device_table(report, title, of_unit))
    rows = {} if facts is None else facts_rows(facts, unit)
    if exports:
        rows["export to"] = exports
    print_end(workload, result, report, what, rows)


def print_end(
    workload: Workload,
    result: Result,
    report: Report | None,
    what: str,
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print notes, objective (`what` it is of), bound, gap, method, time and `more`; or why not."""
    unit = workload.time_unit
    for note in result.notes:
        OUT.print(note, style="dim", highlight=False)
    if report is None:
        if result.status == "infeasible":
            ERR.print(f"infeasible: {result.reason}", highlight=False, soft_wrap=True)
        else:
            within, remedy = f" within the limit ({result.limit})", "give more time, or "
            if result.limit == "none":
                within, remedy = f" by {result.method}, though there may be one", "take "
            ERR.print(
                f"no plan found{within}; bound {show_time(result.bound, unit)}: "
                f"{remedy}another method",
                highlight=False,
                soft_wrap=True,
            )
        return
    rows = {
        "objective": f"{show_time(report.objective, unit)} {what}",
        "bound": f"{show_time(result.bound, unit)}"
        + (f" ({result.bound_origin})" if result.bound_origin else ""),
        "gap": show_proved(result.gap or 0.0, result.status),
        "method": result.method,
        "time": f"{result.seconds:.2f} s"
        + (f", stopped by {result.limit}" if result.limit != "none" else ""),
        **more,
    }
    for name, value in rows.items():
        OUT.print(f"{name:>9}  {value}", highlight=False)


def _device_table(report: Report, title: str, of_unit: str) -> Table:
    titles = ("nodes", f"load{of_unit}", "compute", "transfers", "memory", "of")
    table = new_table(title, "device", titles)
    for device in report.devices:
        table.add_row(
            device.name,
            str(len(device.nodes)),
            f"{device.load:.6g}",
            f"{device.compute:.6g}",
            f"{device.transfer:.4g}",
            show_bytes(device.memory_bytes),
            show_bytes(device.capacity_bytes),
            style="bold" if device.load == report.objective else "",
        )
    return table


def _stage_table(report: Report, title: str, of_unit: str) -> Table:
    titles = ("nodes", "data", "tensor", "recomp.", f"time{of_unit}", "memory", "of")
    table = new_table(title, "stage", titles)
    several = len({stage.kind for stage in report.stages}) > 1
    for stage in report.stages:
        table.add_row(
            f"{stage.number} ({stage.kind})" if several else str(stage.number),
            str(len(stage.nodes)),
            str(stage.replicas),
            str(stage.degree),
            str(len(stage.recomputed)),
            f"{stage.time:.6g}",
            show_bytes(stage.memory_bytes),
            show_bytes(stage.capacity_bytes),
            style="bold" if stage.time == report.objective else "",
        )
    return table


def _call_table(report: Report, title: str, of_unit: str) -> Table:
    titles = ("call", "nodes", f"start{of_unit}", "finish", "in", "compute", "out")
    table = new_table(title, "device", titles)
    for call in report.calls:
        if call.number:
            table.add_row(
                call.device_name,
                str(call.number),
                str(len(call.nodes)),
                f"{call.start:.6g}",
                f"{call.finish:.6g}",
                f"{call.transfer_in:.4g}",
                f"{call.compute:.6g}",
                f"{call.transfer_out:.4g}",
            )
    on_cpus = [call for call in report.calls if not call.number]
    if on_cpus:
        begin, end = min(c.start for c in on_cpus), max(c.finish for c in on_cpus)
        compute = sum(c.compute for c in on_cpus)
        row = ("CPUs", "", str(len(on_cpus)), f"{begin:.6g}", f"{end:.6g}", "", f"{compute:.6g}")
        table.add_row(*row, "")
    return table
