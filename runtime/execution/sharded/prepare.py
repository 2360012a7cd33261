"""Preparation of a sharding's run: the model traced again, with signatures of its operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ....instances import (
    InputError,
    Plan,
    Sharding,
    TensorProgram,
    TensorSharding,
    Workload,
    program_of,
)
from ....instances.formats.files import load_plan
from ....instances.formats.plan_json import read_plan
from ....instances.formats.source import read_source
from ....instances.generate.roofline import machine
from ....instances.pytorch.tensors import tensor_numbers, traced_program
from ....instances.pytorch.tracing.traced import flat_inputs
from ...verify.sharding import check
from ..guard.identity import plan_hash, training_graph_hash
from ..prepare import TracedInputs, shown
from ..stage import Tensors
from .program import PlacedTensor, ShardedProgram, sharded_program


@dataclass(frozen=True, eq=False)
class PreparedSharding:
    """Sharding of a model, prepared for each of its devices.

    `workload` is the plan's, or the model's own program if only the plan is known; `sharded` is the
    program of each device, `losses` are the tensors that the backward pass starts from, and
    `traced` has shapes and types of batches.
    """

    model: nn.Module
    workload: Workload
    plan: Plan
    sharded: ShardedProgram
    losses: tuple[PlacedTensor, ...]
    traced: TracedInputs
    training: ClassVar[bool] = True

    @property
    def processes(self) -> int:
        """Number of processes that run it."""
        return prod(self.sharded.mesh)

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Tensors:
        """Return the tensors of a batch; see `TracedInputs`."""
        return self.traced.tensors(args, kwargs)

    def identity(self) -> dict[str, str]:
        """Return hashes of plan and model, which a checkpoint keeps."""
        graph = training_graph_hash(self.sharded.graph)
        return {"plan": plan_hash(self.plan), "model": graph}


def prepare_sharding(
    plan: Plan | Path,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    workload: Workload | None = None,
) -> PreparedSharding:
    """Trace the training graph of a model again, and give each operator its signatures.

    The model is put in training mode if it is in the other one. `workload`, the plan's, is needed
    if the plan is no file. Raises InputError if the plan was made for another model, or breaks a
    rule.
    """
    named = dict(kwargs or {})
    if not model.training:  # modules that are frozen in another mode stay so
        model.train()
    graph, found = traced_program(model, args, named, machine())
    if workload is not None:
        check_same_program(program_of(found), program_of(workload), workload.name)
        made = load_plan(plan, workload) if isinstance(plan, Path) else plan
        made.check_made_for(workload)
    elif isinstance(plan, Path):
        workload, made = found, read_plan(read_source(plan), found, same_costs=False)
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
    names = [graph.names[node.name] for node in graph.inputs]
    return PreparedSharding(
        model, workload, made, sharded, tuple((t, sharded.lying(t)) for t in losses),
        TracedInputs(names, tuple(named), flat_inputs(args, named)),
    )  # fmt: skip


def check_same_program(found: TensorProgram, planned: TensorProgram, name: str) -> None:
    """Raise InputError with the first operator that differs from the plan's, times apart."""
    remedy = "give the model and inputs (--batch) that were profiled"
    for mine, theirs in zip(found.operators, planned.operators, strict=False):
        for what in ("name", "kind", "inputs", "outputs", "signatures", "gradient"):
            if getattr(mine, what) != getattr(theirs, what):
                raise InputError(f"{name}: {theirs.name} has other {what} in the model; {remedy}")
        for t in theirs.outputs:
            one, other = found.tensors[t], planned.tensors[t]
            if one != other:
                raise InputError(
                    f"{name}: {other.name} is {shown(other)}, and in the model {shown(one)}; "
                    f"{remedy}"
                )
    if len(found.operators) != len(planned.operators):
        raise InputError(
            f"{name}: it has {len(planned.operators)} operators, the model "
            f"{len(found.operators)}; {remedy}"
        )
