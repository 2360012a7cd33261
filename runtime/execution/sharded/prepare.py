"""A sharding and a model become what every device does, operator by operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from ....instances import (
    InputError,
    Operator,
    Plan,
    Problem,
    Role,
    Sharding,
    TensorProgram,
    TensorSharding,
    Workload,
    program_of,
)
from ....instances.common.units import NodeId
from ....instances.formats.files import load_plan, load_plan_for_model
from ....instances.generate.roofline import MACHINES
from ....instances.model.sharding.properties import Property, parse_axis
from ....instances.pytorch.tensors.program import tensor_numbers, traced_program
from ....instances.pytorch.tensors.rules import name_of
from ....instances.pytorch.tensors.trace import TrainingGraph
from ....instances.pytorch.tracing.leaves import tensors
from ...verify.sharding import ShardingReport, check
from ...verify.sharding_steps import Lying, Step
from ..stage import Tensors

#: A tensor of the program by its number, and how it lies.
Held = tuple[int, Property]


@dataclass(frozen=True, eq=False)
class Operation:
    """An operator of the program as a node of the traced graph.

    Parameters
    ----------
    operator
        What the program says of it.
    node
        What is called.
    kind
        What ATen calls it.
    reads, makes
        Its tensors, and how they lie.
    gradients
        Of what it makes those that are a parameter's gradient, and how the parameter lies.
    done
        Tensors that nothing after it needs.
    """

    operator: Operator
    node: fx.Node
    kind: str
    reads: tuple[Held, ...]
    makes: tuple[Held, ...]
    gradients: tuple[Held, ...]
    done: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PreparedSharding:
    """A sharding, ready for each of its devices.

    Parameters
    ----------
    model
        The whole model.
    workload, plan
        What the plan was made for; if only the plan is known, the model's own program.
    graph
        The model, traced again.
    report
        The verifier's, with every conversion.
    operations
        In the order in which they run.
    steps
        For each conversion those that it takes.
    losses
        What the backward pass starts from.
    named
        Names of the inputs that are given by name.
    values
        Inputs that are no tensors.
    """

    model: nn.Module
    workload: Workload
    plan: Plan
    graph: TrainingGraph
    report: ShardingReport
    operations: tuple[Operation, ...]
    steps: Mapping[Held, tuple[Step, ...]]
    losses: tuple[Held, ...]
    named: tuple[str, ...]
    values: tuple[Any, ...]

    @property
    def program(self) -> TensorProgram:
        """Of the workload."""
        return program_of(self.workload)

    @property
    def mesh(self) -> tuple[int, ...]:
        """Devices along each axis."""
        assert isinstance(self.plan.problem, Sharding)
        return self.plan.problem.mesh.shape

    def lying(self, tensor: int) -> Property:
        """Return how a tensor is made."""
        return property_of(self.report.lying[tensor])

    def sources(self, role: Role) -> Iterator[tuple[Operator, Held]]:
        """Yield the parameters (and buffers), or the inputs, with their tensors."""
        for operator in self.program.operators:
            if operator.role is role:
                yield operator, (operator.outputs[0], self.lying(operator.outputs[0]))

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Tensors:
        """Return the tensors of a batch.

        Raises
        ------
        InputError
            If they are not what the model was traced for: other names, shapes, types, or other
            values of what is no tensor.
        """
        kwargs = kwargs or {}
        if set(kwargs) != set(self.named):
            names = ", ".join(self.named) or "none"
            raise InputError(f"inputs: {', '.join(kwargs) or 'none'} by name; traced for {names}")
        given = (args, {name: kwargs[name] for name in self.named})
        found, values = tuple(tensors(given)), _values(given)
        wanted = [node.meta["val"] for node in self.graph.inputs]
        if len(found) != len(wanted) or len(values) != len(self.values):
            raise InputError(f"inputs: {len(found)} tensors; the model takes {len(wanted)}")
        for value, before in zip(values, self.values, strict=True):
            if value != before:
                raise InputError(f"inputs: {value!r} in place of {before!r}, as it was traced")
        for k, (tensor, traced) in enumerate(zip(found, wanted, strict=True)):
            if (tensor.shape, tensor.dtype) != (traced.shape, traced.dtype):
                raise InputError(
                    f"inputs: input {k} is {_shown(tensor)}; every batch must be "
                    f"{_shown(traced)}, as it was traced"
                )
        return found


def prepare_sharding(
    plan: Plan | Path,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    workload: Workload | None = None,
) -> PreparedSharding:
    """Trace the training graph of a model again, and give each operator its signatures.

    Parameters
    ----------
    plan
        A sharding or its file.
    model, args, kwargs
        What the plan was made for; see `tensor_program`. The model is put in training mode.
    workload
        What the plan was made for; needed if `plan` is no file.

    Returns
    -------
    PreparedSharding
        With the conversions, as the verifier has them.

    Raises
    ------
    InputError
        If the plan was made for another model, or breaks a rule.
    """
    named = dict(kwargs or {})
    model.train()
    graph, found = traced_program(model, args, named, next(iter(MACHINES.values())))
    if workload is not None:
        check_same_program(program_of(found), program_of(workload), workload.name)
        made = load_plan(plan, workload) if isinstance(plan, Path) else plan
        made.check_made_for(workload)
    elif isinstance(plan, Path):

        def workload_of(_: type[Problem], __: tuple[NodeId, ...]) -> Workload:
            return found

        workload, made = found, load_plan_for_model(plan, workload_of)
    else:
        raise InputError("run: a plan that is no file needs its workload")
    problem, solution = made.problem, made.solution
    assert isinstance(problem, Sharding)
    assert isinstance(solution, TensorSharding)
    report = check(workload, made.cluster, problem, solution)
    if not report.lying:
        raise InputError(f"plan: {report.violations[0]}; plan again")
    steps = {(one.tensor, property_of(one.after)): one.steps for one in report.converted}
    program = program_of(workload)
    numbers = tensor_numbers(graph, program)
    losses = tuple(
        (t, property_of(report.lying[t])) for t in (numbers[node] for node in graph.losses)
    )
    return PreparedSharding(
        model, workload, made, graph, report,
        tuple(_operations(program, graph, solution, report, {t for t, _ in losses})),
        steps, losses, tuple(named), _values((args, named)),
    )  # fmt: skip


def check_same_program(found: TensorProgram, planned: TensorProgram, name: str) -> None:
    """Check that a model traced again is the one that a program was made of, whatever its times.

    Raises
    ------
    InputError
        With the first operator that differs.
    """
    remedy = "give the model and inputs (--batch) that were profiled"
    for mine, theirs in zip(found.operators, planned.operators, strict=False):
        for what in ("name", "kind", "inputs", "outputs", "signatures", "gradient"):
            if getattr(mine, what) != getattr(theirs, what):
                raise InputError(f"{name}: {theirs.name} has other {what} in the model; {remedy}")
        for t in theirs.outputs:
            one, other = found.tensors[t], planned.tensors[t]
            if one != other:
                raise InputError(
                    f"{name}: {other.name} is {_shape(other.shape)} {other.dtype}, and in the "
                    f"model {_shape(one.shape)} {one.dtype}; {remedy}"
                )
    if len(found.operators) != len(planned.operators):
        raise InputError(
            f"{name}: it has {len(planned.operators)} operators, the model "
            f"{len(found.operators)}; {remedy}"
        )


def property_of(lying: Lying) -> Property:
    """Return what the verifier writes as texts."""
    return tuple(map(parse_axis, lying))


def _operations(
    program: TensorProgram,
    graph: TrainingGraph,
    solution: TensorSharding,
    report: ShardingReport,
    kept: set[int],
) -> Iterator[Operation]:
    nodes = {node.name: node for node in graph.graph.nodes}
    gradients: dict[int, list[Property]] = {}
    for operator in program.operators:
        if operator.gradient is not None:
            how = property_of(report.lying[operator.outputs[0]])
            gradients.setdefault(operator.gradient, []).append(how)
    last: dict[int, int] = {}
    for v, operator in enumerate(program.operators):
        last |= dict.fromkeys((*operator.inputs, *operator.outputs), v)
    resting = {o.outputs[0] for o in program.operators if o.role is Role.PARAMETER}
    done: dict[int, list[int]] = {}
    for t, v in last.items():
        if t not in resting and t not in kept and t not in gradients:
            done.setdefault(v, []).append(t)
    for v, operator in enumerate(program.operators):
        if operator.role is not Role.OPERATOR:
            continue
        row = [operator.signatures[k] for k in solution.signature[v].tolist()]
        reads = [tuple(s.inputs[slot] for s in row) for slot in range(len(operator.inputs))]
        makes = [tuple(s.outputs[slot] for s in row) for slot in range(len(operator.outputs))]
        node = nodes[str(operator.name)]
        yield Operation(
            operator,
            node,
            name_of(node),
            tuple(zip(operator.inputs, reads, strict=True)),
            tuple(zip(operator.outputs, makes, strict=True)),
            tuple((t, how) for t in operator.outputs for how in gradients.get(t, ())),
            tuple(done.get(v, ())),
        )


def _values(given: Any) -> tuple[Any, ...]:
    return tuple(v for v in tree_leaves(given) if not isinstance(v, torch.Tensor))


def _shown(tensor: torch.Tensor) -> str:
    return f"{_shape(tuple(tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a number"
