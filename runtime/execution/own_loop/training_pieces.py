"""A training plan cut for the ranks that run it: stages with replicas, and who recomputes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....instances import InputError, Plan, StagePlacement, Workload, layers_of
from ....instances.pytorch.profile import Profile
from ..split import PieceModule, split


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
        Of each piece's replicas: the plan's devices in use, in their order.
    recompute
        Pieces that compute their activations again.
    devices
        The plan's device of each rank.
    """

    pieces: tuple[PieceModule, ...]
    stages: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    recompute: frozenset[int]
    devices: tuple[int, ...]


def training_pieces(profile: Profile, workload: Workload, plan: Plan) -> TrainingPieces:
    """Cut a model as a training plan says.

    Parameters
    ----------
    profile
        Of the model, for training.
    workload
        What the plan was made for: its nodes are the profile's forward nodes, by id.
    plan
        For training, of tensor degree 1.

    Returns
    -------
    TrainingPieces
        The pieces, their ranks, and which of them recompute.

    Raises
    ------
    InputError
        If the plan is no training plan or made for something else, has a tensor degree above 1,
        or recomputes only some of the layers of a stage.

    Examples
    --------
    >>> import stagecut, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> inputs = (torch.zeros(2, 4),)
    >>> profile = stagecut.profile(model, inputs, training=True, estimate="h100")
    >>> workload = stagecut.training_layers(profile.workload)
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> problem = stagecut.Training(microbatches=2, bandwidth=1e9, degrees=(1,))
    >>> plan = stagecut.solve(workload, cluster, problem, method="data-parallel").plan
    >>> training_pieces(profile, workload, plan).ranks
    ((0, 1),)
    """
    plan.check_made_for(workload)
    solution = plan.solution
    if not isinstance(solution, StagePlacement):
        raise InputError(f"plan: it is for {plan.problem.name}; give a training plan")
    recomputes = layers_of(workload).recomputes
    stage_of: dict[int | str, int] = {}
    devices: list[list[int]] = []
    again: list[bool] = []
    for s, stage in enumerate(solution.stages):
        if stage.degree > 1:
            raise InputError(
                f"stage {s}: its tensor degree is {stage.degree}, and the runtime does not split "
                "operators; plan with --degrees 1"
            )
        flags = {bool(recomputes[c]) for c in stage.configuration}
        if len(flags) > 1:
            raise InputError(
                f"stage {s}: some of its layers recompute, and the runtime recomputes whole "
                "stages; plan with --recomputation off or forced"
            )
        again.append(flags == {True})
        first = int(solution.device[stage.nodes[0]])
        devices.append(list(range(first, first + stage.replicas)))
        stage_of |= {workload.ids[v]: s for v in stage.nodes}
    ids = profile.workload.ids
    forward = [ids[v] for v in np.flatnonzero(~profile.workload.backward).tolist()]
    if set(forward) != set(stage_of):
        odd = next(iter(set(forward) ^ set(stage_of)))
        raise InputError(f"{workload.name}: node {odd} is not in both the plan and the model")
    pieces = split(profile, [stage_of.get(node, 0) for node in ids])
    if len(pieces) != len(solution.stages):
        raise InputError("plan: a stage is not contiguous; verify the plan")
    used = sorted({d for own in devices for d in own})
    order = tuple(piece.device for piece in pieces)
    return TrainingPieces(
        pieces,
        order,
        tuple(tuple(used.index(d) for d in devices[s]) for s in order),
        frozenset(p for p, s in enumerate(order) if again[s]),
        tuple(used),
    )
