"""The cost of a sharding, from the definition: what every device holds, computes and exchanges.

Written apart from the models and the search on purpose: it is what they are judged by. Properties
are read from the texts of signatures, sizes from the parts that devices hold, and conversions are
cheapest paths of single steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...instances import (
    Cluster,
    Sharding,
    TensorProgram,
    TensorSharding,
    Workload,
    program_of,
)
from ...instances.common.units import TIME_UNITS
from .report import Report
from .rules import allowed
from .sharding_operators import added, broken_rules, lying_of, own_cost
from .sharding_steps import Lying, Step, local_bytes, path


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
    ways = [lying_of(o, row) for o, row in zip(program.operators, rows, strict=True)]
    read, made = [way[0] for way in ways], [way[1] for way in ways]
    for v, operator in enumerate(program.operators):
        broken += broken_rules(program, problem, operator, rows[v], read[v], made[v])
    if broken:
        return ShardingReport(math.inf, (), tuple(broken))
    lying: list[Lying] = [()] * len(program.tensors)
    for v, operator in enumerate(program.operators):
        for t, how in zip(operator.outputs, made[v], strict=True):
            lying[t] = how
    converted = tuple(_conversions(program, problem, read, lying))
    own = [
        own_cost(program, problem, operator, rows[v], (*read[v], *made[v]), workload.time_unit)
        for v, operator in enumerate(program.operators)
    ]
    steps = [step for one in converted for step in one.steps]
    if problem.objective == "time":
        moved = math.fsum(step.seconds for step in steps) / TIME_UNITS[workload.time_unit]
    else:
        moved = math.fsum(step.bytes for step in steps)
    objective = math.fsum(cost for cost, _ in own) + moved
    parameters, activations = _memory(program, problem, read, made, lying)
    room = problem.memory_bytes
    if room is not None and parameters + activations > allowed(room):
        broken.append(
            f"each device holds {parameters + activations:.0f} bytes, "
            f"{parameters + activations - room:.0f} more than it has"
        )
    return ShardingReport(
        objective, (), tuple(broken),
        times=tuple(time for _, time in own),
        added=tuple(added(problem, o, row) for o, row in zip(program.operators, rows, strict=True)),
        lying=tuple(lying), converted=converted,
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
