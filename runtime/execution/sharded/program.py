"""Sharded programs: operators and conversions that every device runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torch import fx

from ....instances import (
    InputError,
    Operator,
    Role,
    Sharding,
    TensorProgram,
    TensorSharding,
)
from ....instances.model.sharding import gradient_buckets, operator_groups
from ....instances.model.tensor_program import FIRST, Property, parse_axis
from ....instances.pytorch.tensor_rules import name_of
from ....instances.pytorch.tensor_trace import TrainingGraph
from ...simulate.sharded import ConversionStep, Properties
from ...verify.sharding import ShardingReport, properties_of

#: Tensor of the program by its number, with a property on each axis of the mesh.
PlacedTensor = tuple[int, Property]

#: Operators that change buffers which they read.
CHANGING = frozenset(("native_batch_norm",))


@dataclass(frozen=True, eq=False)
class TracedOperation:
    """Operator of the program with its node of the traced graph.

    `kind` is ATen's name; `reads` and `makes` are its inputs and outputs. Of the outputs, `early`
    are converted at once: gradients, to their parameters' properties, and tensors that groups of
    devices read. `done` are the tensors that no later operator needs. Gradients that are converted
    beside the backward pass are in `buckets` of the operator that makes the bucket's last one.
    """

    operator: Operator
    node: fx.Node
    kind: str
    reads: tuple[PlacedTensor, ...]
    makes: tuple[PlacedTensor, ...]
    early: tuple[PlacedTensor, ...]
    done: tuple[int, ...]
    buckets: tuple[tuple[PlacedTensor, ...], ...]


@dataclass(frozen=True, eq=False)
class ShardedProgram:
    """Program that each device of a sharding runs.

    `mesh` has the devices along each axis, `report` the verifier's conversions, and `steps` the
    collectives of each; `operations` are in the order in which they run. `placed` is whether
    operators are on groups of devices; parameters and inputs that groups read are `early`, which
    are converted first.
    """

    program: TensorProgram
    mesh: tuple[int, ...]
    graph: TrainingGraph
    report: ShardingReport
    operations: tuple[TracedOperation, ...]
    steps: Mapping[PlacedTensor, tuple[ConversionStep, ...]]
    placed: bool
    early: tuple[PlacedTensor, ...]

    def lying(self, tensor: int) -> Property:
        """Return the property with which a tensor is made."""
        return property_of(self.report.lying[tensor])

    def sources(self, role: Role) -> Iterator[tuple[Operator, PlacedTensor]]:
        """Yield the parameters (and buffers), or the inputs, with their tensors."""
        for operator in self.program.operators:
            if operator.role is role:
                yield operator, (operator.outputs[0], self.lying(operator.outputs[0]))

    def resting(self) -> dict[str, Property]:
        """Return the properties of parameters and buffers between steps.

        Raises InputError if an operator changes a gathered copy of a buffer, which would be lost.
        """
        found = {str(operator.name): how for operator, (_, how) in self.sources(Role.PARAMETER)}
        for operation in self.operations:
            for held in operation.reads if operation.kind in CHANGING else ():
                source = self.program.operators[self.program.maker[held[0]]]
                if source.kind != "buffer" or held[1] == self.lying(held[0]):
                    continue
                if any(one.bytes for one in self.steps[held]):
                    raise InputError(
                        f"plan: {operation.operator.name} changes {source.name}, which lies "
                        f"otherwise than it reads it; plan with --set "
                        f'\'fixed=[["{source.name}","{"x".join("B" for _ in held[1])}"]]\''
                    )
                found[str(source.name)] = held[1]
        return found


def sharded_program(
    program: TensorProgram,
    graph: TrainingGraph,
    problem: Sharding,
    solution: TensorSharding,
    report: ShardingReport,
    kept: Collection[int],
) -> ShardedProgram:
    """Return the sharded program of every device; tensors in `kept` stay to the end.

    Raises InputError if the solution breaks a rule, by the verifier's `report`, or an operator
    changes a tensor that the graph does not show.
    """
    if graph.unseen_write:
        raise InputError(
            f"{graph.unseen_write}: it changes a tensor in place that is a buffer, or read by "
            "another name, too; parts of tensors share no memory: write the model without, or run "
            "it in pieces"
        )
    if not report.lying:
        raise InputError(f"plan: {report.violations[0]}; plan again")
    steps = {(one.tensor, property_of(one.after)): one.steps for one in report.converted}
    sent = tuple(  # by all devices to a group
        (t, how) for t, how in steps if how[0] <= FIRST and report.lying[t][0][0] != "I"
    )
    sources = {o.outputs[0] for o in program.operators if o.role is not Role.OPERATOR}
    return ShardedProgram(
        program,
        problem.mesh.shape,
        graph,
        report,
        tuple(_operations(program, graph, problem, solution, report, kept, sent)),
        steps,
        bool(problem.placement),
        tuple(held for held in sent if held[0] in sources),
    )


def property_of(lying: Properties) -> Property:
    """Return a property from its text."""
    return tuple(FIRST - int(one[1:] or 0) if one[0] == "I" else parse_axis(one) for one in lying)


def _operations(
    program: TensorProgram,
    graph: TrainingGraph,
    problem: Sharding,
    solution: TensorSharding,
    report: ShardingReport,
    kept: Collection[int],
    sent: Collection[PlacedTensor],
) -> Iterator[TracedOperation]:
    nodes = {node.name: node for node in graph.graph.nodes}
    gradients: dict[int, list[Property]] = {}
    for operator in program.operators:
        if operator.gradient is not None:
            how = property_of(report.lying[operator.outputs[0]])
            gradients.setdefault(operator.gradient, []).append(how)
    buckets = gradient_buckets(program, problem)
    full: dict[int, list[tuple[PlacedTensor, ...]]] = {}
    for bucket in buckets:
        lying = tuple((t, how) for t in bucket for how in gradients[t])
        full.setdefault(max(program.maker[t] for t in bucket), []).append(lying)
    late = {t for bucket in buckets for t in bucket}
    last: dict[int, int] = {}
    for v, operator in enumerate(program.operators):
        last |= dict.fromkeys((*operator.inputs, *operator.outputs), v)
    resting = {o.outputs[0] for o in program.operators if o.role is Role.PARAMETER}
    groups = operator_groups(program, problem.placement)
    done: dict[int, list[int]] = {}
    for t, v in last.items():
        if t not in resting and t not in kept and t not in gradients:
            done.setdefault(v, []).append(t)
    for v, operator in enumerate(program.operators):
        if operator.role is not Role.OPERATOR or operator.name not in nodes:
            continue  # a reader of a layer's outputs is no node of the layer's graph
        sides = properties_of(operator, solution.signature[v].tolist(), groups[v])
        reads, makes = ([property_of(how) for how in side] for side in sides)
        node = nodes[str(operator.name)]
        yield TracedOperation(
            operator,
            node,
            name_of(node),
            tuple(zip(operator.inputs, reads, strict=True)),
            tuple(zip(operator.outputs, makes, strict=True)),
            (
                *((t, h) for t in operator.outputs if t not in late for h in gradients.get(t, ())),
                *(held for held in sent if held[0] in operator.outputs),
            ),
            tuple(done.get(v, ())),
            tuple(full.get(v, ())),
        )
