"""A training plan cut for the ranks that run it: replicas, tensor degrees, and who recomputes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ....instances import InputError, Plan, Planned, StagePlacement, Workload, layers_of, plan_of
from ....instances.pytorch.profile import Profile
from ..split import PieceModule, split
from .teams import Teams

#: A layer, and its sharding as `Layers` has it.
ShardedLayer = tuple[PieceModule, str]


@dataclass(frozen=True)
class TrainingPieces:
    """What `Loop` takes.

    Parameters
    ----------
    pieces
        One per stage, in the order in which they run.
    stages
        Number of each piece's stage in the plan.
    ranks
        Of each piece's replicas, the first of each: the plan's devices in use, in their order.
    recompute
        Pieces that compute their activations again.
    devices
        The plan's device of each rank.
    teams
        Ranks of each replica of a tensor degree above 1.
    layers
        Of each piece that is so spread, its layers in order, with their shardings.
    """

    pieces: tuple[PieceModule, ...]
    stages: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    recompute: frozenset[int]
    devices: tuple[int, ...]
    teams: Teams = field(default_factory=Teams)
    layers: Mapping[int, tuple[ShardedLayer, ...]] = field(default_factory=dict)


def training_pieces(profile: Profile, workload: Workload, plan: Plan | Planned) -> TrainingPieces:
    """Cut a model as a training plan says.

    Parameters
    ----------
    profile
        Of the model, for training.
    workload
        What the plan was made for: its nodes are the profile's forward nodes, by id.
    plan
        For training; or the `Result` that holds it.

    Returns
    -------
    TrainingPieces
        The pieces, their ranks, and which of them recompute.

    Raises
    ------
    InputError
        If the plan is no training plan or made for something else, spreads layers of which it is
        not known how, or recomputes only some of the layers of a stage.

    Examples
    --------
    >>> import stagecut, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> inputs = (torch.zeros(2, 4),)
    >>> profile = stagecut.profile(model, inputs, training=True, estimate="h100")
    >>> workload = stagecut.training_layers(profile.workload)
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> problem = stagecut.PipelineJob(microbatches=2, bandwidth=1e9, degrees=(1,))
    >>> plan = stagecut.solve(workload, cluster, problem, method="data-parallel").plan
    >>> training_pieces(profile, workload, plan).ranks
    ((0, 1),)
    """
    plan = plan_of(plan)
    plan.check_made_for(workload)
    solution = plan.solution
    if not isinstance(solution, StagePlacement):
        raise InputError(f"plan: it is for {plan.problem.name}; give a training plan")
    layers = layers_of(workload)
    stage_of: dict[int | str, int] = {}
    devices: list[list[tuple[int, ...]]] = []
    again: list[bool] = []
    for s, stage in enumerate(solution.stages):
        if stage.degree > 1 and not all(layers.sharding[c] for c in stage.configuration):
            raise InputError(
                f"stage {s}: its tensor degree is {stage.degree}, and the workload does not say "
                "how its layers are split; profile with --degrees and give --workload, or plan "
                "with --degrees 1"
            )
        flags = {bool(layers.recomputes[c]) for c in stage.configuration}
        if len(flags) > 1:
            raise InputError(
                f"stage {s}: some of its layers recompute, and the runtime recomputes whole "
                "stages; plan with --recomputation off or forced"
            )
        again.append(flags == {True})
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
    members = tuple(tuple(rank[d] for d in team) for s in spread for team in devices[s])
    tied, split_by = _layers(profile, workload, solution, pieces) if spread else (frozenset(), {})
    return TrainingPieces(
        pieces,
        order,
        tuple(tuple(rank[team[0]] for team in devices[s]) for s in order),
        frozenset(p for p, s in enumerate(order) if again[s]),
        tuple(used),
        Teams(members, tied),
        split_by,
    )


def _layers(
    profile: Profile, workload: Workload, solution: StagePlacement, pieces: tuple[PieceModule, ...]
) -> tuple[frozenset[str], dict[int, tuple[ShardedLayer, ...]]]:
    """Return the weights that several layers have, and the layers of the pieces that are split."""
    number = {node: v for v, node in enumerate(workload.ids)}
    position = {v: k for k, v in enumerate(workload.order)}
    stages = [solution.stages[piece.device] for piece in pieces]
    order = [v for stage in stages for v in sorted(stage.nodes, key=position.__getitem__)]
    cut = split(profile, [number.get(node, 0) for node in profile.workload.ids], order)
    texts = layers_of(workload).sharding
    found: dict[int, tuple[ShardedLayer, ...]] = {}
    begin = 0
    for piece, stage in zip(pieces, stages, strict=True):
        own = cut[begin : begin + len(stage.nodes)]
        begin += len(own)
        if (own[0].inputs, own[-1].outputs) != (piece.inputs, piece.outputs):
            raise InputError(
                f"stage {piece.device}: its layers do not run one after the other; plan with "
                "--degrees 1"
            )
        if stage.degree > 1:
            text = {v: texts[c] for v, c in zip(stage.nodes, stage.configuration, strict=True)}
            found[piece.index] = tuple((layer, text[layer.device]) for layer in own)
    holding = Counter(name for layer in cut for name in layer.parameters)
    return frozenset(name for name, count in holding.items() if count > 1), found
