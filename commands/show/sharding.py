"""Output of shardings: layouts of parameters, and conversions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from ...instances import Role, Sharding, TensorSharding, Workload, program_of
from ...instances.formats.solutions_json import mesh_options
from ...instances.model.problem import objective_unit
from ...instances.model.sharding.placement import operator_groups
from ...runtime import ShardingReport
from ...solvers import Result
from ..common.console import OUT, new_table, show_bytes
from .pipeline import Facts, facts_rows
from .plan import as_dict, print_end


def answer(
    workload: Workload,
    problem: Sharding,
    result: Result,
    report: ShardingReport | None,
    facts: Facts | None,
) -> dict[str, Any]:
    """Return the object for `--json`: the keys of solve, properties, conversions, bytes."""
    found = as_dict(workload, problem, result, report, facts)
    program = program_of(workload)
    found["objective_of"] = problem.objective
    found["mesh"] = mesh_options(problem.mesh)
    found["without_rule"] = len(program.unruled)
    if report is None or result.plan is None:
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
        for o, row in zip(program.operators, _rows(result), strict=True)
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


def _rows(result: Result) -> list[list[int]]:
    assert result.plan is not None
    solution = result.plan.solution
    assert isinstance(solution, TensorSharding)
    rows: list[list[int]] = solution.signature.tolist()
    return rows


def print_sharding(
    workload: Workload,
    problem: Sharding,
    result: Result,
    report: ShardingReport | None,
    facts: Facts | None,
) -> None:
    """Print how parameters lie, a row per collective, objective, bound and gap."""
    program = program_of(workload)
    if report is not None:
        mesh = problem.mesh.text
        lies: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for o in program.operators:
            if o.role is Role.PARAMETER:
                how = "x".join(report.lying[o.outputs[0]])
                lies[how] += 1
                sizes[how] += program.tensors[o.outputs[0]].size_bytes
        table = new_table(f"{workload.name} on {mesh} devices", "parameters", ("number", "bytes"))
        for how, count in lies.most_common():
            table.add_row(how, str(count), show_bytes(sizes[how]))
        OUT.print(table)
        table = new_table(
            "what the devices exchange", "collective", ("axis", "number", "bytes", "ms")
        )
        for (name, axis), (number, size, seconds) in collectives(report).items():
            table.add_row(name, str(axis), str(number), show_bytes(size), f"{1e3 * seconds:.4g}")
        OUT.print(table)
        OUT.print(
            f"a device holds {show_bytes(report.memory_bytes)}: parameters, gradients and state "
            f"{show_bytes(report.parameter_bytes)}, activations kept "
            f"{show_bytes(report.activation_bytes)}",
            highlight=False,
            soft_wrap=True,
        )
        if program.unruled:
            kinds = ", ".join(sorted({o.kind for o in program.unruled}))
            OUT.print(
                f"{len(program.unruled)} operators have no rule and run on every device: {kinds}",
                highlight=False,
                soft_wrap=True,
            )
    shown = replace(workload, time_unit=objective_unit(problem, workload.time_unit))
    what = "elements and bytes" if problem.objective == "distpar" else "per batch"
    rows = {} if facts is None else facts_rows(facts, workload.time_unit)
    print_end(shown, result, report, what, rows)


def collectives(report: ShardingReport) -> dict[tuple[str, int], tuple[int, float, float]]:
    """Return number, bytes and seconds of the steps that send something, by name and axis."""
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
