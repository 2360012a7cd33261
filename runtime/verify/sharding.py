"""Verification of shardings: time or bytes of every device's compute and collectives, and memory.

Independent of models and searches on purpose, as it judges them. Properties are read from the texts
of signatures, sizes from the parts that devices hold, and conversions are cheapest paths of single
steps, each a collective along one axis of the mesh.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...instances import (
    Cluster,
    DeviceMesh,
    Operator,
    Sharding,
    Tensor,
    TensorProgram,
    TensorSharding,
    Workload,
    program_of,
)
from ...instances.common.choices import Primitive
from ...instances.common.units import TIME_UNITS
from ...instances.model.sharding import conversion_places, gradient_buckets, operator_groups, phases
from ..simulate.sharded import (
    ConversionStep,
    Converted,
    Properties,
    ShardedTimeline,
    sharded_timeline,
)
from .report import Report
from .rules import usable_bytes

#: Bytes of a number, the least that an all-reduce inside an operator moves.
_NUMBER_BYTES = 4.0


@dataclass(frozen=True, repr=False)
class ShardingReport(Report):
    """Report of a sharding: times of operators, conversions, and memory per device.

    Parameters
    ----------
    times
        Time of each operator on its part of the work, with the all-reduces inside it, in the
        workload's unit.
    added
        Bytes (over all devices) and seconds of the all-reduces inside each operator.
    lying
        Property with which each tensor is made.
    converted
        Conversions, tensor by tensor.
    timeline
        Operators and collectives over time, whose end is the objective ``time``.
    parameter_bytes, activation_bytes
        Bytes on each device: parameters with gradients and optimizer state, and tensors kept for
        the backward pass.

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
    lying: tuple[Properties, ...] = ()
    converted: tuple[Converted, ...] = ()
    timeline: ShardedTimeline = field(default_factory=lambda: ShardedTimeline((), (), ""))
    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0

    @property
    def memory_bytes(self) -> float:
        """Bytes on each device, of parameters and activations."""
        return self.parameter_bytes + self.activation_bytes

    @property
    def sent_bytes(self) -> float:
        """Bytes that all conversions send, over all devices."""
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
    groups = operator_groups(program, problem.placement)
    ways = [properties_of(*one) for one in zip(program.operators, rows, groups, strict=True)]
    read, made = [way[0] for way in ways], [way[1] for way in ways]
    for v, operator in enumerate(program.operators):
        broken += broken_rules(program, problem, operator, rows[v], (read[v], made[v]), groups[v])
    if broken:
        return ShardingReport(math.inf, (), tuple(broken))
    lying: list[Properties] = [()] * len(program.tensors)
    for v, operator in enumerate(program.operators):
        for t, how in zip(operator.outputs, made[v], strict=True):
            lying[t] = how
    converted = tuple(_conversions(program, problem, read, lying))
    own = [
        own_cost(program, problem, operator, rows[v], (*read[v], *made[v]), workload.time_unit)
        for v, operator in enumerate(program.operators)
    ]
    times = tuple(time for _, time in own)
    timeline = sharded_timeline(program, problem, times, converted, workload.time_unit)
    objective = timeline.makespan
    if problem.objective != "time":
        sent = (step.bytes for one in converted for step in one.steps)
        objective = math.fsum([*(cost for cost, _ in own), *sent])
    each = range(problem.mesh.shape[0] if problem.placement else 1)
    parameters, activations = max(
        (_memory(program, problem, read, made, lying, j) for j in each), key=sum
    )
    room = problem.memory_bytes
    if room is not None and parameters + activations > usable_bytes(room):
        broken.append(
            f"each device holds {parameters + activations:.0f} bytes, "
            f"{parameters + activations - room:.0f} more than it has"
        )
    return ShardingReport(
        objective, (), tuple(broken),
        times=times,
        added=tuple(
            added(problem, o, rows[v], (*read[v], *made[v])[0])
            for v, o in enumerate(program.operators)
        ),
        lying=tuple(lying), converted=converted, timeline=timeline,
        parameter_bytes=parameters, activation_bytes=activations,
    )  # fmt: skip


def work_places(
    program: TensorProgram, problem: Sharding
) -> tuple[Sequence[int | None], Sequence[int | None], Sequence[int]]:
    """Return group and phase of each operator, and the operator at which each tensor is converted.

    Without a placement all is in one group and phase; else None stands for all devices.
    """
    if not problem.placement:
        alike = [0] * len(program.operators)
        return alike, alike, program.maker
    groups = operator_groups(program, problem.placement)
    return groups, phases(program, groups), conversion_places(program, groups)


def on_group(group: int) -> str:
    """Return the property along the first axis of a tensor that is whole on one group."""
    return f"I{group}" if group else "I"


def _malformed(
    program: TensorProgram, problem: Sharding, solution: TensorSharding
) -> Iterator[str]:
    """Yield messages of shapes and numbers of signatures that do not exist."""
    wanted = (len(program.operators), len(problem.mesh.shape))
    if solution.signature.shape != wanted:
        yield f"it gives signatures of shape {solution.signature.shape}; {wanted} are needed"
        return
    for operator, row in zip(program.operators, solution.signature.tolist(), strict=True):
        for k in row:
            if not 0 <= k < len(operator.signatures):
                yield f"operator {operator.name} has no signature number {k}"


def _conversions(
    program: TensorProgram, problem: Sharding, read: list[list[Properties]], lying: list[Properties]
) -> Iterator[Converted]:
    """Yield the conversions of each tensor: one for each other property in which it is read."""
    wanted: list[dict[Properties, list[int]]] = [{} for _ in program.tensors]
    for v, operator in enumerate(program.operators):
        for t, how in zip(operator.inputs, read[v], strict=True):
            wanted[t].setdefault(how, []).append(v)
        if operator.gradient is not None:
            how = lying[operator.outputs[0]]
            wanted[operator.gradient].setdefault(how, []).append(v)
    shares = latency_shares(program, problem)
    for t, ways in enumerate(wanted):
        for how, readers in ways.items():
            if how != lying[t]:
                steps = path(program.tensors[t], lying[t], how, problem, shares.get(t, 1.0))
                yield Converted(t, lying[t], how, steps, tuple(dict.fromkeys(readers)))


def _memory(
    program: TensorProgram,
    problem: Sharding,
    read: list[list[Properties]],
    made: list[list[Properties]],
    lying: list[Properties],
    group: int,
) -> tuple[float, float]:
    """Return the bytes of parameters with what belongs to them, and of activations kept.

    Both are those of a device of `group`, its number along the first axis; where nothing is placed
    all groups have the same. A parameter that is trained has a gradient and the optimizer's state.
    A tensor that a forward operator or a source makes and a backward one reads is kept with the
    property of that reader; a view is kept in the memory of its base, unless it is converted.
    """
    mesh = problem.mesh.shape
    parameters = 0.0

    def is_here(how: Properties) -> bool:
        return how[0][0] != "I" or how[0] == on_group(group)

    for v, operator in enumerate(program.operators):
        if operator.role == "parameter" and is_here(made[v][0]):
            copies = 1.0 if operator.gradient is None else 2.0 + problem.state
            parameters += copies * local_bytes(
                program.tensors[operator.outputs[0]], made[v][0], mesh
            )
    kept: set[tuple[int, Properties]] = set()
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
        if (t, how) in kept or not is_here(how):
            continue
        kept.add((t, how))
        maker = program.operators[program.maker[t]]
        if how == lying[t] and maker.view:
            waiting.append((maker.inputs[0], read[program.maker[t]][0]))
        elif not (how == lying[t] and maker.role == "parameter"):
            total += local_bytes(program.tensors[t], how, mesh)
    return parameters, total


def properties_of(
    operator: Operator, row: Sequence[int], group: int | None
) -> tuple[list[Properties], list[Properties]]:
    """Return the properties of an operator's inputs and outputs, by a signature along each axis.

    An operator placed on a group of devices has copies along the first axis in that group alone.
    """
    sides = [operator.signatures[k].text.split("->") for k in row]
    before = [[one for one in side[0].split(",") if one] for side in sides]
    after = [side[1].split(",") for side in sides]
    if group is not None:
        for side in (before, after):
            side[0] = [on_group(group) if one == "B" else one for one in side[0]]
    return (
        [tuple(column) for column in zip(*before, strict=True)],
        [tuple(column) for column in zip(*after, strict=True)],
    )


def broken_rules(
    program: TensorProgram,
    problem: Sharding,
    operator: Operator,
    row: Sequence[int],
    sides: tuple[Sequence[Properties], Sequence[Properties]],
    group: int | None,
) -> Iterator[str]:
    """Yield the violated rules of a choice: placement, divisibility, readability, fixed choices.

    `sides` are the properties of its inputs and of its outputs; `group` is the one that it is
    placed on, None for all devices.
    """
    mesh = problem.mesh.shape
    read, made = sides
    if group is not None and {how[0] for how in (*read, *made)} != {on_group(group)}:
        yield f"operator {operator.name} is placed on group {group}, and divided by the first axis"
    for k in set(row):
        parts = math.prod(p for j, p in zip(row, mesh, strict=True) if j == k)
        extent = operator.signatures[k].extent
        if extent > 1 and extent % parts:
            yield (
                f"operator {operator.name}: {operator.signatures[k].text} divides an extent of "
                f"{extent}, not over {parts} devices"
            )
    for t, how in zip((*operator.inputs, *operator.outputs), (*read, *made), strict=True):
        if part_of(program.tensors[t], how, mesh) is None:
            yield (
                f"operator {operator.name}: {program.tensors[t].name} of shape "
                f"{program.tensors[t].shape} cannot lie as {'x'.join(how)}"
            )
    if operator.role == "input":
        arrives = _arrival(program, operator, mesh)
        if made[0] != arrives:
            yield f"input {operator.name} arrives as {'x'.join(arrives)}"
    fixed = dict(problem.fixed).get(operator.name)
    if fixed is not None:
        inputs = ",".join("x".join(how) for how in read)
        outputs = ",".join("x".join(how) for how in made)
        if fixed not in (f"{inputs}->{outputs}", inputs or outputs):
            yield f"operator {operator.name} is fixed to {fixed}"


def _arrival(program: TensorProgram, operator: Operator, mesh: Sequence[int]) -> Properties:
    """Return the property of an input: split along its axis 0 by each mesh axis that divides it."""
    can = any(signature.text == "->S0" for signature in operator.signatures)
    shape = program.tensors[operator.outputs[0]].shape
    left, how = shape[0] if can else 1, []
    for p in mesh:
        splits = can and left % p == 0
        how.append("S0" if splits else "B")
        left = left // p if splits else left
    return tuple(how)


def own_cost(
    program: TensorProgram,
    problem: Sharding,
    operator: Operator,
    row: Sequence[int],
    how: Sequence[Properties],
    time_unit: str,
) -> tuple[float, float]:
    """Return an operator's cost without conversions, and its time, for its tensors' properties."""
    sent, seconds = added(problem, operator, row, how[0])
    time = _time(program, problem, operator, row, how) + seconds / TIME_UNITS[time_unit]
    if problem.objective == "time":
        return time, time
    elements = 0
    if operator.role == "operator":
        elements = _elements(program, problem, (*operator.inputs, *operator.outputs), how)
    return problem.beta * elements + sent, time


def _elements(
    program: TensorProgram, problem: Sharding, tensors: Sequence[int], how: Sequence[Properties]
) -> int:
    """Return the elements of some tensors on one device."""
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
    how: Sequence[Properties],
) -> float:
    """Return the seconds of an operator on one device, without conversions."""
    mesh = problem.mesh.shape
    share = math.prod(
        p for k, p in zip(row, mesh, strict=True) if operator.signatures[k].extent > 1
    )
    tensors = [program.tensors[t] for t in (*operator.inputs, *operator.outputs)]
    whole = sum(tensor.size_bytes for tensor in tensors)
    held = sum(local_bytes(t, one, mesh) for t, one in zip(tensors, how, strict=True))
    moved = held / whole if whole else 1.0
    return operator.fixed + max(operator.compute / share, operator.memory * moved)


def added(
    problem: Sharding, operator: Operator, row: Sequence[int], how: Properties
) -> tuple[float, float]:
    """Return bytes and seconds of the all-reduces inside an operator.

    `how` is the property of one of its tensors, which shows whether it is on a group of devices.
    """
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
            step = one_step("P", "B", d, among, problem, how)
            bytes_sent, seconds = bytes_sent + step.bytes, seconds + step.seconds
    return bytes_sent, seconds


def part_of(tensor: Tensor, how: Properties, mesh: Sequence[int]) -> list[int] | None:
    """Return the shape of a device's part of a tensor, None if an axis does not divide."""
    shape = list(tensor.shape)
    for one, p in zip(how, mesh, strict=True):
        if one.startswith("S"):
            axis = int(one[1:])
            if axis >= len(shape) or shape[axis] % p:
                return None
            shape[axis] //= p
    return shape


def local_bytes(tensor: Tensor, how: Properties, mesh: Sequence[int]) -> float:
    """Return the bytes of a tensor on one device."""
    part = part_of(tensor, how, mesh)
    assert part is not None
    return math.prod(part) * tensor.size_bytes / max(tensor.elements, 1)


def latency_shares(program: TensorProgram, problem: Sharding) -> dict[int, float]:
    """Return the share of latencies that each gradient in a bucket pays, by its bytes."""
    found: dict[int, float] = {}
    for bucket in gradient_buckets(program, problem):
        whole = sum(program.tensors[t].size_bytes for t in bucket)
        found |= {t: program.tensors[t].size_bytes / max(whole, 1) for t in bucket}
    return found


def path(
    tensor: Tensor, before: Properties, after: Properties, problem: Sharding, share: float = 1.0
) -> tuple[ConversionStep, ...]:
    """Return the cheapest steps from one property to another; see `paths`."""
    for _, here, steps in paths(tensor, before, problem, share):
        if here == after:
            return steps
    raise AssertionError((before, after))


def paths(
    tensor: Tensor, before: Properties, problem: Sharding, share: float = 1.0
) -> Iterator[tuple[float, Properties, tuple[ConversionStep, ...]]]:
    """Yield all properties with their cost and cheapest steps, nearest first, by Dijkstra.

    `share` is the share of latencies that the tensor pays.
    """
    by_time = problem.objective == "time"
    queue: list[tuple[float, int, Properties, tuple[ConversionStep, ...]]] = [(0.0, 0, before, ())]
    settled: set[Properties] = set()
    count = 0
    while queue:
        cost, _, here, steps = heapq.heappop(queue)
        if here in settled:
            continue
        yield cost, here, steps
        settled.add(here)
        for step in _steps(tensor, here, problem, share):
            if step.after not in settled:
                count += 1
                further = cost + (step.seconds if by_time else step.bytes)
                heapq.heappush(queue, (further, count, step.after, (*steps, step)))


def _steps(
    tensor: Tensor, here: Properties, problem: Sharding, share: float
) -> Iterator[ConversionStep]:
    """Yield the steps that change a tensor's property along one axis."""
    mesh = problem.mesh.shape
    for d, before in enumerate(here):
        ways = [f"S{axis}" for axis in range(len(tensor.shape))]
        if problem.placement and d == 0:
            ways += [on_group(j) for j in range(mesh[0])]
        elif problem.mesh.primitives:
            ways.append("I")
        for one in ("B", "P", *ways):
            after = (*here[:d], one, *here[d + 1 :])
            split_later = {how for how in here[d + 1 :] if how.startswith("S")}
            if one == before or split_later & {before, one} or before[0] == one[0] == "I":
                continue
            if part_of(tensor, after, mesh) is None:
                continue
            others = [p for e, p in enumerate(mesh) if e != d and here[e].startswith("S")]
            among = tensor.size_bytes / math.prod(others)
            yield one_step(before, one, d, among, problem, after, share)


def one_step(
    before: str,
    after: str,
    d: int,
    among: float,
    problem: Sharding,
    lying: Properties,
    share: float = 1.0,
) -> ConversionStep:
    """Return a step along axis d, of tensors with `among` bytes in each group of its devices."""
    if before == "B":
        return ConversionStep("slice" if after[0] == "S" else "keep-one", d, lying, 0.0, 0.0)
    if after == "P":
        return ConversionStep("pad", d, lying, 0.0, 0.0)
    name = collective_between(before, after)
    p = problem.mesh.shape[d]
    rounds, passed, sent = collective_rounds(problem.mesh, name, d)
    link = problem.mesh.priced(Primitive(name), d).link
    seconds = share * rounds * link.latency_s + passed * among / link.bytes_per_s
    rows = problem.mesh.size // p  # of devices, that each send as much
    if problem.placement and d > 0 and lying[0][0] == "I":
        rows //= problem.mesh.shape[0]
    return ConversionStep(name, d, lying, rows * sent * among, seconds)


def collective_between(before: str, after: str) -> str:
    """Return the name of the collective that sends a tensor from one property to another."""
    match before[0], after[0]:
        case "P", "B":
            return "all-reduce"
        case "P", "S":
            return "reduce-scatter"
        case "P", _:
            return "reduce"
        case "I", "B":
            return "broadcast"
        case "I", _:
            return "scatter"
        case _, "B":
            return "all-gather"
        case _, "I":
            return "gather"
    return "all-to-all"


def collective_rounds(mesh: DeviceMesh, name: str, d: int) -> tuple[float, float, float]:
    """Return rounds of a collective, bytes passed on in sequence, and bytes sent by a group.

    The last two are fractions of the tensor.
    """
    p = mesh.shape[d]
    rest = p - 1
    if rest == 0:
        return 0, 0, 0
    doublings, part = math.ceil(math.log2(p)), rest / p
    ring, tree, sent = {  # rounds and what they pass on: of a ring, of a tree
        "all-gather": ((rest, part), (doublings, part), rest),
        "reduce-scatter": ((rest, part), (doublings, part), rest),
        "all-reduce": ((2 * rest, 2 * part), (2 * doublings, 2), 2 * rest),
        "all-to-all": ((rest, part / p), (math.inf, math.inf), part),
        "gather": ((rest, part), (doublings, part), part),
        "scatter": ((rest, part), (doublings, part), part),
        "reduce": ((rest, 1), (doublings, doublings), rest),
        "broadcast": ((rest, 1), (doublings, doublings), rest),
    }[name]
    rounds, passed = tree if mesh.priced(Primitive(name), d).algorithm == "tree" else ring
    return rounds, passed, sent
