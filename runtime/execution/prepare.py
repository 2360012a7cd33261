"""Preparation of runs: pieces and stages of a model by its plan, with their ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...instances import (
    InputError,
    Plan,
    Planned,
    Problem,
    ReplicaPlacement,
    StagePlacement,
    Workload,
    is_stream,
    plan_of,
)
from ...instances.common.choices import Tied
from ...instances.common.units import ON_NUMBERS, NodeId
from ...instances.formats.files import load_plan_for_model, load_plan_with_form
from ...instances.model.tied_weights import tied_as
from ...instances.model.training_layers import training_layers
from ...instances.pytorch.profile import Profile, matching, uncut
from ...instances.pytorch.tracing.traced import export_failure, flat_inputs
from ..simulate.pieces import groups_of
from ..simulate.stages import StageGraph
from .chain import Payload, executed_stages, ranks_of
from .guard.identity import graph_hash, plan_hash
from .own_loop.loop import stage_chain
from .own_loop.teams import Teams
from .own_loop.training_pieces import ShardedLayer, training_pieces
from .split import PieceModule, split
from .stage import Tensors


@dataclass(frozen=True, eq=False)
class TracedInputs:
    """Inputs that a model was traced for, and that every microbatch must be like.

    `traced` has all of them, nested ones unpacked, `names` are of the tensors among them, and
    `named` those that are given by name, in the order of the trace.
    """

    names: Sequence[str]
    named: tuple[str, ...]
    traced: Sequence[Any]

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Tensors:
        """Return the tensors of a microbatch.

        Raises InputError if they are not what the model was traced for: other names, shapes, types,
        or other values of what is no tensor.
        """
        kwargs = kwargs or {}
        if set(kwargs) != set(self.named):
            names = ", ".join(self.named) or "none"
            raise InputError(f"inputs: {', '.join(kwargs) or 'none'} by name; traced for {names}")
        flat = flat_inputs(args, {n: kwargs[n] for n in self.named})
        given = tuple(value for value in flat if isinstance(value, torch.Tensor))
        if len(given) != len(self.names) or len(flat) != len(self.traced):
            raise InputError(f"inputs: {len(given)} tensors; the model takes {len(self.names)}")
        tensors = iter(self.names)
        for value, before in zip(flat, self.traced, strict=True):
            if not isinstance(value, torch.Tensor) or not isinstance(before, torch.Tensor):
                if isinstance(value, torch.Tensor) or value != before:
                    raise InputError(f"inputs: {value!r} in place of {before!r}, as it was traced")
                continue
            name = next(tensors)
            if (value.shape, value.dtype) != (before.shape, before.dtype):
                raise InputError(
                    f"inputs: {name} is {_shown(value)}; every microbatch must be "
                    f"{_shown(before)}, as it was traced"
                )
        return given


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan of a model, cut for the ranks that run it.

    `workload` is what the plan was made for, or the profile's if only the plan is known. `pieces`
    are in the order in which they run, and `stages` are the same for schedules and the simulator,
    with the workload's times (of a training plan without, but with its replicas). `devices` has the
    plan's device of each rank, `training` whether there is a backward pass, `named` the inputs that
    are given by name, in the order of the trace, and `recompute` the pieces that compute their
    activations again. For `teams` and `layers` see `TrainingPieces`.
    """

    model: nn.Module = field(repr=False)
    profile: Profile
    workload: Workload
    plan: Plan
    pieces: tuple[PieceModule, ...] = field(repr=False)
    stages: StageGraph
    devices: tuple[int, ...]
    training: bool
    named: tuple[str, ...]
    recompute: frozenset[int] = frozenset()
    teams: Teams = field(default_factory=Teams)
    layers: Mapping[int, tuple[ShardedLayer, ...]] = field(default_factory=dict)

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each piece's replicas, as `Loop` takes them; of a team the first one."""
        number = {device: rank for rank, device in enumerate(self.devices)}
        return tuple(tuple(number[d] for d in ring) for ring in self.stages.replicas)

    @property
    def processes(self) -> int:
        """Number of processes that run it, replicas of the whole pipeline aside."""
        return len(self.devices)

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Tensors:
        """Return the tensors that the first piece takes for a microbatch; see `TracedInputs`."""
        traced = TracedInputs(self.pieces[0].inputs, self.named, self.profile.traced.inputs)
        return traced.tensors(args, kwargs)

    def identity(self) -> dict[str, str]:
        """Return hashes of what a checkpoint must have in common with the run that goes on."""
        return {"plan": plan_hash(self.plan), "model": graph_hash(self.profile.traced)}


def split_model(
    plan: Plan | Planned | Path,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    workload: Workload | None = None,
) -> Prepared:
    """Trace a model again and cut it as a plan says.

    Parameters
    ----------
    plan
        A plan, the `Result` that holds it, or its file.
    model, args, kwargs
        What the plan was made for: the model, and inputs of one microbatch.
    workload
        What the plan was made for; needed if `plan` is no file. With it, the model is held
        against it in all that was recorded of it, and schedules are made from its times.

    Returns
    -------
    Prepared
        The pieces, in the order in which they run, and their stages for schedules.

    Raises
    ------
    InputError
        If the plan was made for another model, or for other inputs; of training plans, if it
        spreads layers of which it is not known how, or recomputes some of the layers of a stage of
        a tensor degree.

    Examples
    --------
    >>> import stagecut, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> inputs = (torch.zeros(2, 4),)
    >>> workload = stagecut.profile(model, inputs, estimate="h100").workload
    >>> cluster = workload.cluster.with_counts(accelerators=1, cpus=0)
    >>> plan = stagecut.solve(workload, cluster, stagecut.Throughput("contiguous")).plan
    >>> len(split_model(plan, model, inputs, workload=workload).pieces)
    1
    """
    if not isinstance(plan, Path):
        plan = plan_of(plan)
    if isinstance(plan, Plan) and workload is None:
        raise InputError("run: a plan that is no file needs its workload")
    named = tuple(kwargs or {})
    if workload is not None:
        if isinstance(plan, Path):
            workload, made = load_plan_with_form(plan, workload)
        else:
            made = plan
        made.check_made_for(workload)
        if workload.provenance.get("traced_by") == ON_NUMBERS and _on_one_device(made):
            return _uncut(model, args, kwargs, workload, made)
        staged = isinstance(made.solution, StagePlacement)
        training = staged or bool(workload.backward.any())
        profile = matching(model, args, kwargs, workload.ids, training, layers=staged)
        check_same(training_layers(profile.workload) if staged else profile.workload, workload)
    else:
        assert isinstance(plan, Path)
        found: list[tuple[Profile, Workload]] = []
        made = load_plan_for_model(plan, _trace_again(model, args, kwargs, found))
        profile, workload = found[0]
    if not profile.traced.runs:
        if _on_one_device(made):
            return _uncut(model, args, kwargs, workload, made)
        raise InputError(f"{workload.name}: {export_failure(profile.traced)}")
    if isinstance(made.solution, StagePlacement):
        return _staged(model, profile, workload, made, named)
    groups, order = groups_of(made)
    here = [workload.index[node] for node in profile.workload.ids]
    device, group = made.placement[here].tolist(), [groups[v] for v in here]
    pieces = split(profile, device, order, group)
    if isinstance(made.solution, ReplicaPlacement) and len(pieces) < len(made.solution.slots):
        raise InputError(f"{workload.name}: a stage of the plan has no forward pass; plan fewer")
    return _in_pieces(model, profile, workload, made, pieces, named)


def _on_one_device(plan: Plan) -> bool:
    return not isinstance(plan.solution, StagePlacement) and len(set(plan.placement.tolist())) == 1


def _uncut(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    workload: Workload,
    plan: Plan,
) -> Prepared:
    """Return a model of one piece, which runs as it is: no graph of it holds for other numbers."""
    profile = uncut(model, args, kwargs, bool(workload.backward.any()))
    (piece,) = split(profile, [int(plan.placement[0])] * profile.workload.n)
    piece = replace(piece, nodes=tuple(np.flatnonzero(~workload.backward).tolist()))
    return _in_pieces(model, profile, workload, plan, (piece,), tuple(kwargs or {}))


def _in_pieces(
    model: nn.Module, profile: Profile, workload: Workload, plan: Plan,
    pieces: tuple[PieceModule, ...], named: tuple[str, ...],
) -> Prepared:  # fmt: skip
    training = bool(workload.backward.any())
    stages = executed_stages(workload, plan, [payload(piece, training) for piece in pieces])
    devices = tuple(ranks_of(stages))
    return Prepared(model, profile, workload, plan, pieces, stages, devices, training, named)


def _staged(
    model: nn.Module, profile: Profile, workload: Workload, plan: Plan, named: tuple[str, ...]
) -> Prepared:
    cut = training_pieces(profile, workload, plan)
    rings = [[cut.devices[rank] for rank in ring] for ring in cut.ranks]
    stages = stage_chain(rings, plan.cluster.size, training=True)
    return Prepared(
        model, profile, workload, plan, cut.pieces, stages, cut.devices, True, named,
        cut.recompute, cut.teams, cut.layers,
    )  # fmt: skip


def payload(piece: PieceModule, training: bool) -> Payload:
    """Return the bytes that a piece hands on, and gets back."""
    values = [piece.values[name] for name in piece.outputs]
    back = sum(value.size_bytes for value in values if value.grad and training)
    return Payload(float(piece.payload_bytes), float(back))


def check_same(found: Workload, planned: Workload) -> None:
    """Raise InputError with the first node that a model traced again has otherwise, ties apart."""
    found, planned = tied_as(found, Tied.COLOUR), tied_as(planned, Tied.COLOUR)
    order = [found.index[node] for node in planned.ids]
    for what in ("output_bytes", "backward"):
        mine, theirs = getattr(found, what), getattr(planned, what)
        if mine is None or theirs is None:
            continue
        different = np.flatnonzero(mine[order] != theirs)
        if len(different):
            v = int(different[0])
            raise InputError(
                f"{planned.name}: {planned.ids[v]} has {what} {theirs[v]:g}, and in the model "
                f"{mine[order][v]:g}; give the model and inputs (--batch) that were profiled"
            )
    position = {v: i for i, v in enumerate(order)}
    edges = {(position[u], position[v]) for u, v in found.edges.tolist()}
    for u, v in edges ^ {(u, v) for u, v in planned.edges.tolist()}:
        raise InputError(
            f"{planned.name}: {planned.ids[u]} and {planned.ids[v]} hang together in another way "
            "than in the model; the plan was made for another one"
        )


def _trace_again(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    found: list[tuple[Profile, Workload]],
) -> Callable[[Problem, tuple[NodeId, ...]], Workload]:
    """Return a function that traces the model for given ids and fills `found`."""

    def workload_of(problem: Problem, ids: tuple[NodeId, ...]) -> Workload:
        if is_stream(problem):
            profile = matching(model, args, kwargs, ids, True, layers=True)
            found.append((profile, training_layers(profile.workload)))
            return found[0][1]
        # Autograd's names and those of layers tell a backward node from a forward node.
        training = any(".backward" in str(n) or "Backward" in str(n) for n in ids)
        profile = matching(model, args, kwargs, ids, training)
        found.append((profile, profile.workload))
        return profile.workload

    return workload_of


def _shown(tensor: torch.Tensor) -> str:
    shape = "×".join(map(str, tensor.shape)) or "a number"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"
