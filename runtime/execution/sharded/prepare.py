"""Preparation of sharded runs from a sharding and a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ....instances import (
    InputError,
    Plan,
    Problem,
    Sharding,
    TensorProgram,
    TensorSharding,
    Workload,
    program_of,
)
from ....instances.common.units import NodeId
from ....instances.formats.files import load_plan, load_plan_for_model
from ....instances.generate.roofline import MACHINES
from ....instances.pytorch.tensors.program import tensor_numbers, traced_program
from ....instances.pytorch.tracing.leaves import tensors
from ...verify.sharding import check
from ..stage import Tensors
from .program import Held, ShardedProgram, sharded_program


@dataclass(frozen=True, eq=False)
class PreparedSharding:
    """A sharding, ready for each of its devices.

    Parameters
    ----------
    model
        The whole model.
    workload, plan
        What the plan was made for; if only the plan is known, the model's own program.
    sharded
        The model, traced again, and what each device does.
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
    sharded: ShardedProgram
    losses: tuple[Held, ...]
    named: tuple[str, ...]
    values: tuple[Any, ...]

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
        wanted = [node.meta["val"] for node in self.sharded.graph.inputs]
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

        def workload_of(_: Problem, __: tuple[NodeId, ...]) -> Workload:
            return found

        workload, made = found, load_plan_for_model(plan, workload_of)
    else:
        raise InputError("run: a plan that is no file needs its workload")
    problem, solution = made.problem, made.solution
    assert isinstance(problem, Sharding)
    assert isinstance(solution, TensorSharding)
    program = program_of(workload)
    numbers = tensor_numbers(graph, program)
    losses = tuple(numbers[node] for node in graph.losses)
    report = check(workload, made.cluster, problem, solution)
    sharded = sharded_program(program, graph, problem, solution, report, losses)
    return PreparedSharding(
        model, workload, made, sharded, tuple((t, sharded.lying(t)) for t in losses),
        tuple(named), _values((args, named)),
    )  # fmt: skip


def check_same_program(found: TensorProgram, planned: TensorProgram, name: str) -> None:
    """Raise InputError unless a model traced again matches a tensor program, times apart.

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


def _values(given: Any) -> tuple[Any, ...]:
    return tuple(v for v in tree_leaves(given) if not isinstance(v, torch.Tensor))


def _shown(tensor: torch.Tensor) -> str:
    return f"{_shape(tuple(tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a number"
