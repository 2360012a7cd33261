"""Stages of training plans per rank: replicas, tensor degrees, recomputation."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint

from ....instances import InputError, Plan, StagePlacement, Workload, layers_of
from ....instances.pytorch.profile import Profile
from ..split import PieceModule, split
from .teams import Teams

#: A layer, and its sharding as `Layers` has it.
ShardedLayer = tuple[PieceModule, str]


@dataclass(frozen=True)
class TrainingPieces:
    """Arguments of `Loop` for a training plan.

    `pieces` has one per stage in the order in which they run, whose device is the stage's number in
    the plan, and `ranks` those of its replicas, the first of each. `recompute` are the pieces that
    compute all of their activations again (one of which only some layers do has that in its
    module), `devices` the plan's device of each rank, `teams` the ranks of each replica of a tensor
    degree above 1, and `layers` the layers of each piece that is so spread, in order, with their
    shardings.
    """

    pieces: tuple[PieceModule, ...]
    ranks: tuple[tuple[int, ...], ...]
    recompute: frozenset[int]
    devices: tuple[int, ...]
    teams: Teams = field(default_factory=Teams)
    layers: Mapping[int, tuple[ShardedLayer, ...]] = field(default_factory=dict)


def training_pieces(profile: Profile, workload: Workload, plan: Plan) -> TrainingPieces:
    """Cut a model as a training plan says; `workload` has the profile's forward nodes, by id.

    Raises InputError if the plan is no training plan or made for something else, spreads layers of
    which it is not known how, or recomputes some of the layers of a stage of a tensor degree.
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
    used = sorted({d for own in devices for team in own for d in team})
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
    members = tuple(tuple(rank[d] for d in team) for s in spread for team in devices[s])
    texts = layers_of(workload).sharding
    split_by: dict[int, tuple[ShardedLayer, ...]] = {}
    for piece in pieces:
        stage = solution.stages[piece.device]
        if stage.degree > 1:
            text = {v: texts[c] for v, c in zip(stage.nodes, stage.configuration, strict=True)}
            split_by[piece.index] = tuple((x, text[x.device]) for x in by_piece[piece.index])
    return TrainingPieces(
        pieces,
        tuple(tuple(rank[team[0]] for team in devices[s]) for s in order),
        frozenset(p for p, s in enumerate(order) if again[s] and s not in partly),
        tuple(used),
        Teams(members, tied),
        split_by,
    )


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
    """Return a piece whose layers in `again` keep their inputs only.

    Parameters stay where they are, under the model's names: such a layer is one node that takes
    them beside its inputs.
    """
    graph = fx.Graph()
    values: dict[str, fx.Node] = {name: graph.placeholder(name) for name in piece.inputs}
    for layer in layers:
        if layer.device in again:
            run, held = _recomputed(layer)
            taken = [values[name] for name in layer.inputs] + [graph.get_attr(n) for n in held]
            made = graph.call_function(run, tuple(taken))
            outputs: Sequence[Any] = [
                graph.call_function(operator.getitem, (made, k)) for k in range(len(layer.outputs))
            ]
        else:
            inner = layer.module.graph
            given = [node for node in inner.nodes if node.op == "placeholder"]
            known = {n: values[name] for n, name in zip(given, layer.inputs, strict=True)}
            copied = graph.graph_copy(inner, known)
            assert isinstance(copied, tuple)
            outputs = copied
        values = dict(zip(layer.outputs, outputs, strict=True))
    graph.output(tuple(values[name] for name in piece.outputs))
    return fx.GraphModule(piece.module, graph)


def _recomputed(layer: PieceModule) -> tuple[Any, tuple[str, ...]]:
    """Return a function that checkpoints a layer, and the tensors that it takes after inputs."""
    graph = fx.Graph()
    new: dict[fx.Node, Any] = {}
    held: dict[str, fx.Node] = {}
    nodes = list(layer.module.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            new[node] = graph.placeholder(node.name)
    for node in nodes:
        if node.op != "get_attr":
            continue
        if isinstance(operator.attrgetter(node.target)(layer.module), Tensor):
            if node.target not in held:
                held[node.target] = graph.placeholder(f"held_{len(held)}")
            new[node] = held[node.target]
    for node in nodes:
        if node not in new and node.op != "output":
            new[node] = graph.node_copy(node, new.__getitem__)
    (ends,) = (node for node in nodes if node.op == "output")
    graph.output(fx.map_arg(ends.args[0], new.__getitem__))
    module = fx.GraphModule(layer.module, graph)

    def recomputed(*tensors: Tensor) -> tuple[Tensor, ...]:
        made: tuple[Tensor, ...] = checkpoint(module, *tensors, use_reentrant=False)
        return made

    # `place` moves what the graph makes itself, and asynchronous schedules refuse it
    vars(recomputed).update(module=module, recomputes=True)
    return recomputed, tuple(held)
