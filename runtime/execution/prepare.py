"""Preparation of runs: a model's pieces and stages by its plan, with their ranks."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from ...instances import (
    InputError,
    Plan,
    Planned,
    ReplicaPlacement,
    StagePlacement,
    Workload,
    is_stream,
    layers_of,
    plan_of,
)
from ...instances.common.choices import Tied
from ...instances.common.units import ON_NUMBERS
from ...instances.formats.files import load_plan_with_form
from ...instances.formats.outline import placed_ids
from ...instances.formats.plan_json import read_plan
from ...instances.formats.source import read_source
from ...instances.model.tied_weights import tied_as
from ...instances.model.training_layers import training_layers
from ...instances.pytorch.profile import Profile, matching, uncut
from ...instances.pytorch.tracing.traced import export_failure, flat_inputs
from ..simulate.pieces import groups_of
from ..simulate.stages import StageGraph
from .chain import executed_stages, ranks_of
from .guard.identity import graph_hash, plan_hash
from .own_loop.loop import stage_chain
from .own_loop.tensor_groups import TensorGroups
from .split import PieceModule, split
from .stage import Tensors, register

#: Ending of a backward node's id, of a layer or by autograd's name of an operator.
_BACKWARD = re.compile(r"(\.backward|Backward\d*)(#\d+)?$")
#: A layer, and its sharding in the text form of `Layers`.
ShardedLayer = tuple[PieceModule, str]


@dataclass(frozen=True, eq=False)
class TracedInputs:
    """Inputs that a model was traced with; every microbatch has the same shapes and types.

    `traced` has all of them, nested ones unpacked, `names` those of the tensors among them, and
    `named` the names of keyword arguments, in the order of the trace.
    """

    names: Sequence[str]
    named: tuple[str, ...]
    traced: Sequence[Any]

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Tensors:
        """Return the tensors of a microbatch.

        Raises InputError if names, shapes or types differ from the trace, or values of other types
        than tensors.
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
                    f"inputs: {name} is {shown(value)}; every microbatch must be "
                    f"{shown(before)}, as it was traced"
                )
        return given


@dataclass(frozen=True, eq=False)
class Prepared:
    """Pieces of a model for the ranks that run a plan.

    `workload` is the plan's, or the profile's if only the plan is known. `pieces` are in the order
    in which they run, and `stages` are the same for schedules and the simulator, with the
    workload's times (stages of a training plan have replicas, and no times). `devices` has the
    plan's device of each rank, `training` whether there is a backward pass, `named` the names of
    keyword arguments, in the order of the trace, and `recompute` the pieces that compute all of
    their activations again (where only some layers do, the piece's module does so itself).
    `tensor_groups` are the ranks of each replica of a tensor degree above 1, and `layers` the
    layers of each piece of such a degree, in order, with their shardings.
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
    tensor_groups: TensorGroups = field(default_factory=TensorGroups)
    layers: Mapping[int, tuple[ShardedLayer, ...]] = field(default_factory=dict)

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each piece's replicas, as `Loop` takes them; of a tensor group the first."""
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
        """Return hashes of plan and model, which a checkpoint keeps."""
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
        What the plan was made for; needed if `plan` is no file. The model is then compared with it
        node by node, and schedules are made from its times.

    Returns
    -------
    Prepared
        The pieces, in the order in which they run, and their stages for schedules.

    Raises
    ------
    InputError
        If the plan was made for another model or other inputs, or is a training plan with a tensor
        degree above 1 that the workload has no sharding for, or of which a stage recomputes only
        some of its layers.

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
    if workload is None:
        assert isinstance(plan, Path)
        source = read_source(plan)
        problem, ids = placed_ids(source)
        staged = is_stream(problem)
        training = staged or any(_BACKWARD.search(str(node)) for node in ids)
    else:
        workload, made = (
            load_plan_with_form(plan, workload) if isinstance(plan, Path) else (workload, plan)
        )
        made.check_made_for(workload)
        if workload.provenance.get("traced_by") == ON_NUMBERS and _on_one_device(made):
            return _uncut(model, args, kwargs, workload, made)
        ids, staged = workload.ids, isinstance(made.solution, StagePlacement)
        training = staged or bool(workload.backward.any())
    profile = matching(model, args, kwargs, ids, training, layers=staged)
    found = training_layers(profile.workload) if staged else profile.workload
    if workload is None:
        workload, made = found, read_plan(source, found, same_costs=False)
    else:
        check_same(found, workload)
    if not profile.traced.runs:
        if _on_one_device(made):
            return _uncut(model, args, kwargs, workload, made)
        raise InputError(f"{workload.name}: {export_failure(profile.traced)}")
    if isinstance(made.solution, StagePlacement):
        return training_pieces(model, profile, workload, made, named)
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
    """Return a model as one piece that runs its own code: its graph depends on the inputs."""
    profile = uncut(model, args, kwargs, bool(workload.backward.any()))
    (piece,) = split(profile, [int(plan.placement[0])] * profile.workload.n)
    piece = replace(piece, nodes=tuple(np.flatnonzero(~workload.backward).tolist()))
    return _in_pieces(model, profile, workload, plan, (piece,), tuple(kwargs or {}))


def _in_pieces(
    model: nn.Module, profile: Profile, workload: Workload, plan: Plan,
    pieces: tuple[PieceModule, ...], named: tuple[str, ...],
) -> Prepared:  # fmt: skip
    training = bool(workload.backward.any())
    stages = executed_stages(workload, plan)
    devices = tuple(ranks_of(stages))
    return Prepared(model, profile, workload, plan, pieces, stages, devices, training, named)


def training_pieces(
    model: nn.Module, profile: Profile, workload: Workload, plan: Plan, named: tuple[str, ...] = ()
) -> Prepared:
    """Cut a model as a training plan says; `workload` has the profile's forward nodes, by id.

    The device of a piece is the number of its stage in the plan. Raises InputError as
    `split_model` does, or if the plan is no training plan.
    """
    plan.check_made_for(workload)
    solution = plan.solution
    if not isinstance(solution, StagePlacement):
        raise InputError(f"plan: it is for {plan.problem.name}; give a training plan")
    layers = layers_of(workload)
    stage_of: dict[int | str, int] = {}
    devices: list[list[tuple[int, ...]]] = []
    again: list[frozenset[int]] = []
    for s, stage in enumerate(solution.stages):
        if stage.degree > 1 and not all(layers.sharding[c] for c in stage.configuration):
            raise InputError(
                f"stage {s}: its tensor degree is {stage.degree}, and the workload does not say "
                "how its layers are split; profile with --degrees and give --workload, or plan "
                "with --degrees 1"
            )
        pairs = zip(stage.nodes, stage.configuration, strict=True)
        again.append(frozenset(v for v, c in pairs if layers.recomputes[c]))
        if stage.degree > 1 and 0 < len(again[s]) < len(stage.nodes):
            raise InputError(
                f"stage {s}: some of its layers recompute, and a stage of tensor degree "
                f"{stage.degree} recomputes as a whole; plan with --set recomputation=off"
            )
        first = int(solution.device[stage.nodes[0]])
        starts = range(first, first + stage.replicas * stage.degree, stage.degree)
        devices.append([tuple(range(d, d + stage.degree)) for d in starts])
        stage_of |= {workload.ids[v]: s for v in stage.nodes}
    ids = profile.workload.ids
    forward = [ids[v] for v in np.flatnonzero(~profile.workload.backward).tolist()]
    if set(forward) != set(stage_of):
        odd = next(iter(set(forward) ^ set(stage_of)))
        raise InputError(f"{workload.name}: node {odd} is not in both the plan and the model")
    pieces = split(profile, [stage_of.get(node, 0) for node in ids])
    if len(pieces) != len(solution.stages):
        raise InputError("plan: a stage is not contiguous; verify the plan")
    used = sorted({d for own in devices for group in own for d in group})
    rank = {d: r for r, d in enumerate(used)}
    order = tuple(piece.device for piece in pieces)
    spread = [s for s, stage in enumerate(solution.stages) if stage.degree > 1]
    partly = {s for s, own in enumerate(again) if 0 < len(own) < len(solution.stages[s].nodes)}
    tied: frozenset[str] = frozenset()
    if partly or spread:
        tied, by_piece = _layers(profile, workload, solution, pieces)
        pieces = tuple(
            replace(piece, module=_recomputing(piece, by_piece[piece.index], again[piece.device]))
            if piece.device in partly
            else piece
            for piece in pieces
        )
    members = tuple(tuple(rank[d] for d in group) for s in spread for group in devices[s])
    texts = layers.sharding
    split_by: dict[int, tuple[ShardedLayer, ...]] = {}
    for piece in pieces:
        stage = solution.stages[piece.device]
        if stage.degree > 1:
            text = {v: texts[c] for v, c in zip(stage.nodes, stage.configuration, strict=True)}
            split_by[piece.index] = tuple((x, text[x.device]) for x in by_piece[piece.index])
    rings = [[group[0] for group in devices[s]] for s in order]
    stages = stage_chain(rings, plan.cluster.size, training=True)
    recompute = frozenset(p for p, s in enumerate(order) if again[s] and s not in partly)
    return Prepared(
        model, profile, workload, plan, pieces, stages, tuple(used), True, named, recompute,
        TensorGroups(members, tied), split_by,
    )  # fmt: skip


def _layers(
    profile: Profile, workload: Workload, solution: StagePlacement, pieces: tuple[PieceModule, ...]
) -> tuple[frozenset[str], dict[int, tuple[PieceModule, ...]]]:
    """Return the weights that several layers have, and the layers of each piece, in order."""
    number = {node: v for v, node in enumerate(workload.ids)}
    position = {v: k for k, v in enumerate(workload.order)}
    stages = [solution.stages[piece.device] for piece in pieces]
    order = [v for stage in stages for v in sorted(stage.nodes, key=position.__getitem__)]
    cut = split(profile, [number.get(node, 0) for node in profile.workload.ids], order)
    found: dict[int, tuple[PieceModule, ...]] = {}
    begin = 0
    for piece, stage in zip(pieces, stages, strict=True):
        own = cut[begin : begin + len(stage.nodes)]
        begin += len(own)
        if (own[0].inputs, own[-1].outputs) != (piece.inputs, piece.outputs):
            raise InputError(
                f"stage {piece.device}: its layers do not run one after the other; plan with "
                "--degrees 1 --set recomputation=off"
            )
        found[piece.index] = own
    holding = Counter(name for layer in cut for name in layer.parameters)
    return frozenset(name for name, count in holding.items() if count > 1), found


def _recomputing(
    piece: PieceModule, layers: Sequence[PieceModule], again: frozenset[int]
) -> fx.GraphModule:
    """Return a piece whose layers in `again` are checkpointed, each in a graph of its own."""
    graph = fx.Graph()
    values: dict[str, fx.Node] = {name: graph.placeholder(name) for name in piece.inputs}
    for k, layer in enumerate(layers):
        taken = [values[name] for name in layer.inputs]
        outputs: Sequence[Any]
        if layer.device in again:
            inner, names = _taking_tensors(layer.module)
            own = f"recomputed {k}"  # no identifier, unlike the names of the model's parts
            register(piece.module, own, inner)
            held = [graph.get_attr(name) for name in (own, *names)]
            given = held[0], *taken, *held[1:]
            made = graph.call_function(checkpoint, given, {"use_reentrant": False})
            count = range(len(layer.outputs))
            outputs = [graph.call_function(operator.getitem, (made, k)) for k in count]
        else:
            inputs = layer.module.graph.find_nodes(op="placeholder")
            copied = graph.graph_copy(layer.module.graph, dict(zip(inputs, taken, strict=True)))
            assert isinstance(copied, tuple)
            outputs = copied
        values = dict(zip(layer.outputs, outputs, strict=True))
    graph.output(tuple(values[name] for name in piece.outputs))
    return fx.GraphModule(piece.module, graph)


def _taking_tensors(module: fx.GraphModule) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """Return a module that takes its tensors and parts behind its inputs, and their names."""
    graph = fx.Graph()
    new: dict[fx.Node, Any] = {}
    names: list[str] = []
    for n in module.graph.nodes:
        name = str(n.target)
        if n.op == "get_attr" and not isinstance(attrgetter(name)(module), fx.GraphModule):
            new[n] = graph.placeholder(n.name)
            names.append(name)
        else:
            new[n] = graph.node_copy(n, new.__getitem__)
    return fx.GraphModule(module, graph), tuple(names)


def check_same(found: Workload, planned: Workload) -> None:
    """Raise InputError with the first node that differs in the model traced again, ties apart."""
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


def shown(tensor: Any) -> str:
    """Return the text of a tensor's shape and type."""
    shape = "×".join(map(str, tensor.shape)) or "a number"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"
