"""Output of results of any problem: tables, rankings of schedules, and the object of `--json`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ...api.gain import gain
from ...instances import (
    DeviceMapping,
    PipelineJob,
    PipelinePlacement,
    Problem,
    ReplicaPlacement,
    Role,
    Sharding,
    TensorSharding,
    Workload,
    is_iteration,
    program_of,
)
from ...instances.common.units import TIME_UNITS, show_proved
from ...instances.model.problem import objective_unit
from ...instances.model.sharding import operator_groups
from ...runtime import Report, ShardingReport
from ...runtime.simulate.simulator import simulate
from ...runtime.verify.report import MappingReport
from ...solvers import Result
from ..common.console import (
    ERR,
    OUT,
    fold_titles,
    new_table,
    show_bytes,
    show_count,
    show_gap,
    show_percent,
    show_time,
)

if TYPE_CHECKING:
    import pandas as pd

    from ...instances.model.topology import Topology
    from ...runtime import CallReport, DeviceReport, StageReport

#: Largest number of devices named per stage.
NAMED = 4


def as_dict(
    workload: Workload,
    problem: Problem,
    result: Result,
    report: Report | None,
) -> dict[str, Any]:
    """Return the object for `--json`; times in the workload's unit, sizes in bytes.

    Keys that all problems share come first, then those of the problem.
    """
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
        "trace": [[p.seconds, p.objective, p.bound] for p in result.trace],
    }
    if isinstance(report, MappingReport) and isinstance(problem, DeviceMapping):
        answer |= _mapping(workload, problem, result, report)
    elif isinstance(problem, Sharding):
        answer |= _sharding(workload, problem, result, report)
    elif report is not None:
        answer["devices"] = [_device(d) for d in report.devices] or [
            _stage(s) for s in report.stages
        ]
        if report.calls:
            answer["calls"] = [_call(call) for call in report.calls if call.number]
    return answer | gain_dict(workload, result)


def _device(device: DeviceReport) -> dict[str, Any]:
    return {key.removesuffix("_bytes"): value for key, value in vars(device).items()}


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
    kept = {key: value for key, value in vars(call).items() if key != "device_name"}
    return {**kept, "device": call.device_name}


def print_result(
    workload: Workload,
    problem: Problem,
    result: Result,
    report: Report | None,
    exports: str = "",
    *,
    problem_given: bool,
) -> None:
    """Print the tables of a plan, then objective, bound, gap, method, time; or why there is none.

    `exports` is a line on the launchers that can take the plan; empty: none. `problem_given`: the
    user named the problem, and needs no line on its use.
    """
    unit = workload.time_unit
    what = "per microbatch as profiled"
    if isinstance(problem, DeviceMapping):
        what = "for the busiest link" if problem.objective == "busiest-link" else "per batch"
        if isinstance(report, MappingReport):
            _print_mapping(workload, problem, result, report)
    elif isinstance(problem, Sharding):
        what = "elements and bytes" if problem.objective == "distpar" else "per batch"
        if isinstance(report, ShardingReport):
            _print_sharding(workload, problem, report)
    elif report is not None:
        of_unit = "" if unit == "unspecified" else f" ({unit})"
        edges = show_count(len(workload.edges), "edge")
        title = f"{workload.name}: {show_count(workload.n, 'node')}, {edges}"
        solution = None if result.plan is None else result.plan.solution
        if report.stages:
            OUT.print(_stage_table(report, title, of_unit))
            what = "per microbatch"
        elif report.calls:
            OUT.print(_call_table(report, title, of_unit))
            what = "for one request"
        elif is_iteration(problem) and isinstance(solution, PipelinePlacement):
            OUT.print(iteration_table(report, problem, solution, title, of_unit))
            each = show_time(report.objective / problem.batch, unit)
            named = "the schedule given" if problem.order else problem.schedule
            what = (
                f"per iteration of {show_count(problem.batch, 'microbatch')} under {named}, "
                f"{each} per microbatch as profiled"
            )
        else:
            OUT.print(_device_table(report, title, of_unit))
    rows = gain_rows(workload, result, problem_given=problem_given)
    if exports:
        rows["export to"] = exports
    _print_end(objective_unit(problem, unit), result, report, what, rows)


def _print_end(
    unit: str, result: Result, report: Report | None, what: str, more: Mapping[str, str]
) -> None:
    """Print notes, then objective and its span `what`, bound, gap, method, time and `more`.

    Without a report, print the reason for no plan.
    """
    for note in result.notes:
        OUT.print_wrapped(note, style="dim")
    if report is None:
        if result.status == "infeasible":
            ERR.print_line(f"infeasible: {result.reason}")
        else:
            within, remedy = f" within the limit ({result.limit})", "give more time, or "
            if result.limit == "none":
                within, remedy = f" by {result.method}, though there may be one", "take "
            ERR.print_line(
                f"no plan found{within}; bound {show_time(result.bound, unit)}: "
                f"{remedy}another method"
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
        OUT.print_wrapped(f"{name:>9}  {value}")


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
    titles = ("call", "nodes", "start", "finish", "in", "compute", "out")
    table = new_table(f"{title}; times{of_unit}" if of_unit else title, "device", titles)
    for call in report.calls:
        if call.number:
            table.add_row(
                call.device_name,
                str(call.number),
                str(len(call.nodes)),
                f"{call.start:.5g}",
                f"{call.finish:.5g}",
                f"{call.transfer_in:.3g}",
                f"{call.compute:.5g}",
                f"{call.transfer_out:.3g}",
            )
    on_cpus = [call for call in report.calls if not call.number]
    if on_cpus:
        begin, end = min(c.start for c in on_cpus), max(c.finish for c in on_cpus)
        compute = sum(c.compute for c in on_cpus)
        row = ("CPUs", "", str(len(on_cpus)), f"{begin:.5g}", f"{end:.5g}", "", f"{compute:.5g}")
        table.add_row(*row, "")
    return table


def _mapping(
    workload: Workload, problem: DeviceMapping, result: Result, report: MappingReport
) -> dict[str, Any]:
    """Return the stages of a mapping, and its busiest link."""
    assert result.plan is not None
    solution = result.plan.solution
    assert isinstance(solution, ReplicaPlacement)
    unit = TIME_UNITS[workload.time_unit]
    topology = problem.topology
    stages = [
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
    busiest = link and {
        "from": node_name(topology, link[0]),
        "to": node_name(topology, link[1]),
        "time": report.busiest_link_s / unit,
    }
    return {"stages": stages, "busiest_link": busiest}


def node_name(topology: Topology, node: int) -> str:
    """Return the display name of a device or switch."""
    if node < topology.size:
        return topology.devices[node]
    return f"switch {node - topology.size}"


def _print_mapping(
    workload: Workload, problem: DeviceMapping, result: Result, report: MappingReport
) -> None:
    """Print a row per stage, and the busiest link."""
    assert result.plan is not None
    solution, topology, unit = result.plan.solution, problem.topology, workload.time_unit
    assert isinstance(solution, ReplicaPlacement)
    titles = (f"time ({unit})", "compute", "transfer", "all-reduce", "by", "devices")
    table = new_table(f"{workload.name} on {topology.name}, {problem.mode}", "stage", titles)
    for column in table.columns[-2:]:
        column.justify, column.no_wrap = "left", False
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
        OUT.print_wrapped(f"busiest link: {a} → {b}, {seconds} per batch")


def _sharding(
    workload: Workload, problem: Sharding, result: Result, report: Report | None
) -> dict[str, Any]:
    """Return the properties, conversions and bytes of a sharding."""
    program = program_of(workload)
    found: dict[str, Any] = {
        "objective_of": problem.objective,
        "mesh": asdict(problem.mesh),
        "without_rule": len(program.unruled),
    }
    solution = None if result.plan is None else result.plan.solution
    if not (isinstance(report, ShardingReport) and isinstance(solution, TensorSharding)):
        return found
    names = [tensor.name for tensor in program.tensors]
    found["compute"] = sum(report.times)
    found["bytes"] = report.sent_bytes
    found["memory"] = {
        "parameters": report.parameter_bytes,
        "activations": report.activation_bytes,
        "capacity": problem.memory_bytes,
    }
    found["parameters"] = {
        str(o.name): "x".join(report.lying[o.outputs[0]])
        for o in program.operators
        if o.role is Role.PARAMETER
    }
    found["operators"] = {
        str(o.name): [o.signatures[k].text for k in row]
        for o, row in zip(program.operators, solution.signature.tolist(), strict=True)
    }
    groups = operator_groups(program, problem.placement)
    found["groups"] = {
        str(o.name): j for o, j in zip(program.operators, groups, strict=True) if j is not None
    }
    found["conversions"] = [
        {
            "tensor": names[one.tensor],
            "from": "x".join(one.before),
            "to": "x".join(one.after),
            "readers": [str(program.operators[v].name) for v in one.readers],
            "steps": [
                {"collective": s.collective, "axis": s.axis, "bytes": s.bytes, "seconds": s.seconds}
                for s in one.steps
            ],
        }
        for one in report.converted
    ]
    return found


def _print_sharding(workload: Workload, problem: Sharding, report: ShardingReport) -> None:
    """Print the properties of parameters, and a row per collective."""
    program = program_of(workload)
    lies: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for o in program.operators:
        if o.role is Role.PARAMETER:
            how = "x".join(report.lying[o.outputs[0]])
            lies[how] += 1
            sizes[how] += program.tensors[o.outputs[0]].size_bytes
    table = new_table(
        f"{workload.name} on {problem.mesh.text} devices", "parameters", ("number", "bytes")
    )
    for how, count in lies.most_common():
        table.add_row(how, str(count), show_bytes(sizes[how]))
    OUT.print(table)
    table = new_table("what the devices exchange", "collective", ("axis", "number", "bytes", "ms"))
    for (name, axis), (number, size, seconds) in collectives(report).items():
        table.add_row(name, str(axis), str(number), show_bytes(size), f"{1e3 * seconds:.4g}")
    OUT.print(table)
    OUT.print_line(
        f"a device holds {show_bytes(report.memory_bytes)}: parameters, gradients and state "
        f"{show_bytes(report.parameter_bytes)}, activations kept "
        f"{show_bytes(report.activation_bytes)}"
    )
    if program.unruled:
        kinds = ", ".join(sorted({o.kind for o in program.unruled}))
        OUT.print_line(
            f"without a rule, on every device: {show_count(len(program.unruled), 'operator')}, "
            f"{kinds}"
        )


def collectives(report: ShardingReport) -> dict[tuple[str, int], tuple[int, float, float]]:
    """Return number, bytes and seconds of the collectives that send data, by name and axis."""
    found: dict[tuple[str, int], tuple[int, float, float]] = {}
    for one in report.converted:
        for step in one.steps:
            if step.bytes:
                number, size, seconds = found.get((step.collective, step.axis), (0, 0.0, 0.0))
                found[step.collective, step.axis] = (
                    number + 1,
                    size + step.bytes,
                    seconds + step.seconds,
                )
    return dict(sorted(found.items()))


def gain_dict(workload: Workload, result: Result) -> dict[str, Any]:
    """Return speed-up and bubble of a plan for `--json`; empty where it has none."""
    gained, plan = gain(workload, result), result.plan
    if gained is None or plan is None:
        return {}
    answer: dict[str, Any] = {
        "one_device": gained.one_device,
        "speed_up": gained.speed_up,
        "no_gain_because": gained.reason,
    }
    problem, solution = plan.problem, plan.solution
    if is_iteration(problem) and isinstance(solution, PipelinePlacement):
        answer |= {
            "schedule": problem.schedule,
            "microbatches": problem.batch,
            "per_microbatch": plan.objective / problem.batch,
            "bubble": simulate(workload, plan).bubble,
            "stages": list(solution.devices),
        }
    return answer


def gain_rows(workload: Workload, result: Result, *, problem_given: bool) -> dict[str, str]:
    """Return the lines on a plan's gain below a table of devices, by name."""
    gained, plan = gain(workload, result), result.plan
    if gained is None or plan is None:
        return {}
    rows = {}
    if math.isfinite(gained.speed_up):
        rows["speed-up"] = gained.text(workload.time_unit)
    if is_iteration(plan.problem):
        share = show_percent(simulate(workload, plan).bubble)
        rows["bubble"] = f"{share} of the time of the devices in use"
    elif not problem_given and workload.backward.any():
        rows["right for"] = (
            "streams of microbatches without end; plan an iteration with --microbatches"
        )
    return rows


def iteration_table(
    report: Report, problem: PipelineJob, solution: PipelinePlacement, title: str, of_unit: str
) -> Table:
    """Return the table of devices in the order of their first stages; times per microbatch."""
    numbers: dict[int, list[int]] = {}
    for s, d in enumerate(solution.devices):
        numbers.setdefault(d, []).append(s)
    chain = problem.split == "contiguous"
    first = "stages, device" if problem.chunks_per_device > 1 else "stage, device"
    titles = ("nodes", "forward + backward", f"load{of_unit}", "peak memory", "of")
    table = new_table(title, first if chain else "device", titles)
    most = max((device.load for device in report.devices), default=0.0)
    idle = [d for d in range(len(report.devices)) if d not in numbers]
    for d in [*numbers, *idle]:
        device = report.devices[d]
        stages = f"{', '.join(map(str, numbers.get(d, ['–'])))}  " if chain else ""
        table.add_row(
            f"{stages}{device.name}",
            str(len(device.nodes)),
            f"{device.forward:.4g} + {device.backward:.4g}",
            f"{device.load:.5g}",
            show_bytes(device.memory_bytes),
            show_bytes(device.capacity_bytes),
            style="bold" if device.load == most else "",
        )
    fold_titles(table)
    return table


def schedule_table(ranked: pd.DataFrame, title: str, of_unit: str) -> Table:
    """Return the table of schedules, the best first."""
    titles = (f"makespan{of_unit}", "bound", "gap", "bubble", "peak memory", "fits")
    table = new_table(title, "schedule", titles)
    for row in ranked.to_dict("records"):
        fits, known = bool(row["fits"]), math.isfinite(row["makespan"])
        table.add_row(
            str(row["schedule"]) + (f" × {row['chunks']}" if row["chunks"] > 1 else ""),
            f"{row['makespan']:.6g}" if known else "",
            f"{row['bound']:.6g}" if fits else "",
            show_gap(row["gap"]) if fits else "",
            show_percent(row["bubble"]) if known else "",
            show_bytes(row["peak_bytes"]) if known else "",
            "yes" if fits else "no" if row["status"] == "infeasible" else "?",
        )
    fold_titles(table)
    return table
