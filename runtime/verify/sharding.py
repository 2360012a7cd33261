"""The cost of a sharding, from the definition: what every device holds, computes and exchanges.

Written apart from the models and the search on purpose: it is what they are judged by. Properties
are read from the texts of signatures, sizes from the parts that devices hold, and conversions are
cheapest paths of single steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...instances import (
    Cluster,
    Operator,
    Sharding,
    TensorProgram,
    TensorSharding,
    Workload,
    program_of,
)
from ...instances.common.units import TIME_UNITS
from .report import Report
from .sharding_steps import Lying, Step, local_bytes, one_step, part_of, path

#: How much more than the memory may be held, for rounding.
_SLACK = 1e-9

#: Bytes of a statistic.
_NUMBER_BYTES = 4.0


@dataclass(frozen=True)
class Converted:
    """A tensor that is converted, once for all that read it so.

    Parameters
    ----------
    tensor
        Its number in the program.
    before, after
        How it lies.
    steps
        First to last.
    readers
        Numbers of the operators that read it so; of a gradient, its parameter.
    """

    tensor: int
    before: Lying
    after: Lying
    steps: tuple[Step, ...]
    readers: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class ShardingReport(Report):
    """A report of a sharding: its conversions, and what a device holds.

    Parameters
    ----------
    times
        For each operator what it takes on its part, what is added up meanwhile included, in the
        workload's unit.
    added
        For each operator bytes (over all devices) and seconds of what is added up meanwhile.
    lying
        For each tensor how it is made.
    converted
        The conversions.
    parameter_bytes, activation_bytes
        On each device: parameters with gradients and optimizer state, and what is kept for the
        backward pass.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.instances import Operator, Signature, Tensor, TensorProgram, program_workload
    >>> ways = (Signature.of("->S0", 8), Signature.of("->B"))
    >>> x = Operator("x", (), (0,), ways, role="input")
    >>> double = Operator("double", (0,), (1,), (Signature.of("B->B"),), memory=1.0)
    >>> program = TensorProgram((Tensor("x", (8, 4)), Tensor("y", (8, 4))), (x, double))
    >>> workload = program_workload(program, "small", time_unit="s")
    >>> mesh = stagecut.DeviceMesh((2,), (stagecut.Link(0.5, 64.0),))
    >>> plan = stagecut.solve(workload, problem=stagecut.Sharding(mesh)).plan
    >>> report = stagecut.evaluate(workload, plan.cluster, plan.problem, plan.solution)
    >>> [step.collective for step in report.converted[0].steps], report.objective
    (['all-gather'], 2.5)
    """

    times: tuple[float, ...] = ()
    added: tuple[tuple[float, float], ...] = ()
    lying: tuple[Lying, ...] = ()
    converted: tuple[Converted, ...] = ()
    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0

    @property
    def memory_bytes(self) -> float:
        """On each device."""
        return self.parameter_bytes + self.activation_bytes

    @property
    def sent_bytes(self) -> float:
        """That all conversions send, over all devices."""
        return math.fsum(step.bytes for one in self.converted for step in one.steps)

    def _rows(self) -> tuple[Converted, ...]:
        return self.converted


def check(
    workload: Workload, _: Cluster, problem: Sharding, solution: TensorSharding
) -> ShardingReport:
    """Evaluate a sharding and list the rules it breaks."""
    program = program_of(workload)
    broken = list(_malformed(program, problem, solution))
    if broken:
        return ShardingReport(math.inf, (), tuple(broken))
    rows = solution.signature.tolist()
    read, made = _lying(program, rows)
    broken += _rules(program, problem, rows, read, made)
    if broken:
        return ShardingReport(math.inf, (), tuple(broken))
    lying: list[Lying] = [()] * len(program.tensors)
    for v, operator in enumerate(program.operators):
        for t, how in zip(operator.outputs, made[v], strict=True):
            lying[t] = how
    converted = tuple(_conversions(program, problem, read, lying))
    unit = TIME_UNITS[workload.time_unit]
    added = [_added(problem, operator, rows[v]) for v, operator in enumerate(program.operators)]
    times = [
        _time(program, problem, operator, rows[v], (*read[v], *made[v])) + added[v][1] / unit
        for v, operator in enumerate(program.operators)
    ]
    if problem.objective == "distpar":
        elements = sum(
            _elements(program, problem, (*o.inputs, *o.outputs), (*read[v], *made[v]))
            for v, o in enumerate(program.operators)
            if o.role == "operator"
        )
        sent = math.fsum(step.bytes for one in converted for step in one.steps)
        objective = problem.beta * elements + math.fsum(size for size, _ in added) + sent
    else:
        seconds = math.fsum(step.seconds for one in converted for step in one.steps)
        objective = math.fsum(times) + seconds / unit
    parameters, activations = _memory(program, problem, read, made, lying)
    room = problem.memory_bytes
    if room is not None and parameters + activations > room * (1 + _SLACK):
        broken.append(
            f"each device holds {parameters + activations:.0f} bytes, "
            f"{parameters + activations - room:.0f} more than it has"
        )
    return ShardingReport(
        objective, (), tuple(broken),
        times=tuple(times), added=tuple(added), lying=tuple(lying), converted=converted,
        parameter_bytes=parameters, activation_bytes=activations,
    )  # fmt: skip


def _malformed(
    program: TensorProgram, problem: Sharding, solution: TensorSharding
) -> Iterator[str]:
    wanted = (len(program.operators), len(problem.mesh.shape))
    if solution.signature.shape != wanted:
        yield f"it gives signatures of shape {solution.signature.shape}; {wanted} are needed"
        return
    for operator, row in zip(program.operators, solution.signature.tolist(), strict=True):
        for k in row:
            if not 0 <= k < len(operator.signatures):
                yield f"operator {operator.name} has no signature number {k}"


def _lying(
    program: TensorProgram, rows: Sequence[Sequence[int]]
) -> tuple[list[list[Lying]], list[list[Lying]]]:
    """Return how each operator reads and makes its tensors."""
    read: list[list[Lying]] = []
    made: list[list[Lying]] = []
    for operator, row in zip(program.operators, rows, strict=True):
        sides = [operator.signatures[k].text.split("->") for k in row]
        before = [[one for one in side[0].split(",") if one] for side in sides]
        after = [side[1].split(",") for side in sides]
        read.append([tuple(column) for column in zip(*before, strict=True)])
        made.append([tuple(column) for column in zip(*after, strict=True)])
    return read, made


def _rules(
    program: TensorProgram,
    problem: Sharding,
    rows: Sequence[Sequence[int]],
    read: list[list[Lying]],
    made: list[list[Lying]],
) -> list[str]:
    """Say what does not divide, arrives otherwise, or differs from what is fixed."""
    mesh, broken = problem.mesh.shape, []
    fixed = dict(problem.fixed)
    for v, operator in enumerate(program.operators):
        for k in set(rows[v]):
            parts = math.prod(p for j, p in zip(rows[v], mesh, strict=True) if j == k)
            extent = operator.signatures[k].extent
            if extent > 1 and extent % parts:
                broken.append(
                    f"operator {operator.name}: {operator.signatures[k].text} divides an extent of "
                    f"{extent}, not over {parts} devices"
                )
        for t, how in zip((*operator.inputs, *operator.outputs), (*read[v], *made[v]), strict=True):
            if part_of(program.tensors[t], how, mesh) is None:
                broken.append(
                    f"operator {operator.name}: {program.tensors[t].name} of shape "
                    f"{program.tensors[t].shape} cannot lie as {'x'.join(how)}"
                )
        if operator.role == "input":
            arrives = _arrival(program, operator, mesh)
            if made[v][0] != arrives:
                broken.append(f"input {operator.name} arrives as {'x'.join(arrives)}")
        if operator.name in fixed:
            inputs = ",".join("x".join(how) for how in read[v])
            outputs = ",".join("x".join(how) for how in made[v])
            if fixed[operator.name] not in (f"{inputs}->{outputs}", inputs or outputs):
                broken.append(f"operator {operator.name} is fixed to {fixed[operator.name]}")
    return broken


def _arrival(program: TensorProgram, operator: Operator, mesh: Sequence[int]) -> Lying:
    """Return how an input arrives: split by axis 0 wherever that divides what is left of it."""
    can = any(signature.text == "->S0" for signature in operator.signatures)
    shape = program.tensors[operator.outputs[0]].shape
    left, how = shape[0] if can else 1, []
    for p in mesh:
        splits = can and left % p == 0
        how.append("S0" if splits else "B")
        left = left // p if splits else left
    return tuple(how)


def _elements(
    program: TensorProgram, problem: Sharding, tensors: Sequence[int], how: Sequence[Lying]
) -> int:
    parts = [
        part_of(program.tensors[t], one, problem.mesh.shape)
        for t, one in zip(tensors, how, strict=True)
    ]
    return sum(math.prod(part or ()) for part in parts)


def _time(
    program: TensorProgram,
    problem: Sharding,
    operator: Operator,
    row: Sequence[int],
    how: Sequence[Lying],
) -> float:
    mesh = problem.mesh.shape
    share = math.prod(
        p for k, p in zip(row, mesh, strict=True) if operator.signatures[k].extent > 1
    )
    tensors = [program.tensors[t] for t in (*operator.inputs, *operator.outputs)]
    whole = sum(tensor.size_bytes for tensor in tensors)
    held = sum(local_bytes(t, one, mesh) for t, one in zip(tensors, how, strict=True))
    moved = held / whole if whole else 1.0
    return operator.fixed + max(operator.compute / share, operator.memory * moved)


def _added(problem: Sharding, operator: Operator, row: Sequence[int]) -> tuple[float, float]:
    """Return bytes and seconds of the all-reduces inside an operator."""
    bytes_sent, seconds, mesh = 0.0, 0.0, problem.mesh
    for d, k in enumerate(row):
        size = operator.signatures[k].reduced_bytes
        if size:
            others = [
                mesh.shape[e]
                for e, j in enumerate(row)
                if e != d and j != k and operator.signatures[j].extent > 1
            ]
            least = min(size, _NUMBER_BYTES)  # a number is not divided
            among = max(size / math.prod(others), least)
            step = one_step("P", "B", d, among, problem, ())
            bytes_sent, seconds = bytes_sent + step.bytes, seconds + step.seconds
    return bytes_sent, seconds


def _conversions(
    program: TensorProgram, problem: Sharding, read: list[list[Lying]], lying: list[Lying]
) -> Iterator[Converted]:
    """Yield what is converted: for each tensor each way that somebody reads it otherwise."""
    wanted: list[dict[Lying, list[int]]] = [{} for _ in program.tensors]
    for v, operator in enumerate(program.operators):
        for t, how in zip(operator.inputs, read[v], strict=True):
            wanted[t].setdefault(how, []).append(v)
        if operator.gradient is not None:
            how = lying[operator.outputs[0]]
            wanted[operator.gradient].setdefault(how, []).append(v)
    for t, ways in enumerate(wanted):
        for how, readers in ways.items():
            if how != lying[t]:
                steps = path(program.tensors[t], lying[t], how, problem)
                yield Converted(t, lying[t], how, steps, tuple(dict.fromkeys(readers)))


def _memory(
    program: TensorProgram,
    problem: Sharding,
    read: list[list[Lying]],
    made: list[list[Lying]],
    lying: list[Lying],
) -> tuple[float, float]:
    """Return the bytes of parameters with what belongs to them, and of activations kept.

    A parameter that is trained has a gradient and the optimizer's state. What a forward operator
    or a source makes and a backward one reads is kept as that reads it; what only looks at another
    tensor is kept in the memory of that one, unless it is converted.
    """
    mesh = problem.mesh.shape
    parameters = 0.0
    for v, operator in enumerate(program.operators):
        if operator.role == "parameter":
            copies = 1.0 if operator.gradient is None else 2.0 + problem.state
            parameters += copies * local_bytes(
                program.tensors[operator.outputs[0]], made[v][0], mesh
            )
    kept: set[tuple[int, Lying]] = set()
    waiting = [
        (t, how)
        for v, operator in enumerate(program.operators)
        if operator.backward
        for t, how in zip(operator.inputs, read[v], strict=True)
        if not program.operators[program.maker[t]].backward
    ]
    total = 0.0
    while waiting:
        t, how = waiting.pop()
        if (t, how) in kept:
            continue
        kept.add((t, how))
        maker = program.operators[program.maker[t]]
        if how == lying[t] and maker.view:
            waiting.append((maker.inputs[0], read[program.maker[t]][0]))
        elif not (how == lying[t] and maker.role == "parameter"):
            total += local_bytes(program.tensors[t], how, mesh)
    return parameters, total
