"""Executor of a rank's row of a schedule: all plans of pieces run by it.

Beyond `torch.distributed.pipelining`, it has stages with different numbers of replicas,
asynchronous schedules with weight versions, stages of a tensor degree, and backward messages of
those tensors alone that have a gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....instances import InputError
from ...measure.group import rank_device
from ...schedules import Action, Kind, Schedule, validate
from ...simulate.stages import StageGraph, chain
from ..gradients import GradientSums, clip_norm
from ..options import MakeOptimizer
from ..sharded.stage import ShardedStage
from ..split import PieceModule
from ..stage import Recorder, StageRunner, Tensors
from .tensor_groups import TensorGroups
from .transport import Message, P2PTransport, Ranks, routes_of
from .versions import Weights, check_two_versions, round_sizes, with_updates

#: Function that returns the model's inputs for a microbatch of a pass over the schedule.
Data = Callable[[int], Tensors]


class Loop:
    """Executor of the pieces of one rank by its row of the schedule.

    Microbatch j of a piece runs on its replica j modulo their number. Gradients are those of the
    mean loss of a round (`versions.py`), which is the batch in synchronous schedules.

    Parameters
    ----------
    pieces
        Pieces of the whole model, in order; the modules of other ranks' pieces are not used.
    ranks
        Ranks of each piece, a replica each.
    schedule
        Schedule whose devices are the ranks, and whose stages are the pieces.
    training
        Whether there are backward passes.
    optimizer
        Applied to each piece on its own; None to leave the gradients in the parameters, which
        asynchronous schedules do not.
    microbatches
        Number in a batch, on which 2BW's versions depend; default: the schedule's.
    recompute
        Pieces whose activations are computed again in the backward pass.
    device
        Device of the tensors; default: this rank's, by the backend of its process group.
    recorder
        Recorder of begin and end of each action.
    tensor_groups
        Tensor-parallel groups, of whose rows the schedule has the first rank's.

    Raises
    ------
    InputError
        If the schedule does not fit the pieces or would deadlock, or if it is asynchronous and
        splits backward passes, or two pieces share a weight.

    Notes
    -----
    All ranks construct it together, since it makes process groups.

    Examples
    --------
    >>> import stagecut
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> inputs = (torch.zeros(2, 4),)
    >>> workload = stagecut.profile(model, inputs, estimate="h100").workload
    >>> cluster = workload.cluster.with_counts(accelerators=1, cpus=0)
    >>> plan = stagecut.solve(workload, cluster, stagecut.Throughput("contiguous")).plan
    >>> ready = stagecut.split_model(plan, model, inputs, workload=workload)
    >>> schedule = stagecut.make_schedule("inference", ready.stages, 2)
    >>> loop = Loop(ready.pieces, [[0]], schedule, training=False)
    >>> loop.run(lambda microbatch: ready.inputs(inputs))
    >>> len(loop.results)
    2
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        pieces: Sequence[PieceModule],
        ranks: Ranks,
        schedule: Schedule,
        *,
        training: bool = True,
        optimizer: MakeOptimizer | None = None,
        microbatches: int | None = None,
        recompute: frozenset[int] = frozenset(),
        device: torch.device | None = None,
        recorder: Recorder | None = None,
        tensor_groups: TensorGroups | None = None,
    ) -> None:
        tensor_groups = tensor_groups or TensorGroups()
        group = tensor_groups.of(dist.get_rank())
        rank = group[0]
        self.first = rank == dist.get_rank()
        device = device or rank_device()
        self.last = len(pieces) - 1
        self.ranks, self.tensor_groups = tuple(map(tuple, ranks)), tensor_groups
        self.schedule = schedule
        self.training = training
        self.recorder = recorder
        self.asynchronous = schedule.versions != "one"
        stages = stage_chain(self.ranks, dist.get_world_size(), training=training)
        check(schedule, stages, pieces)
        self.row = schedule.of(rank)
        self.sizes = round_sizes(schedule, self.ranks, microbatches or schedule.microbatches)
        if self.asynchronous:
            rows = with_updates(schedule, stages, self.sizes)
            if schedule.versions == "two":
                check_two_versions(rows, self.sizes)
            self.row = rows[rank]

        routes = tensor_groups.routes(routes_of(schedule, self.ranks))
        self.transport = P2PTransport(pieces, routes, device)
        names = [list(piece.parameters) for piece in pieces]
        held = tensor_groups.holders(names, self.ranks)
        self.sums = GradientSums(held[group.index(dist.get_rank())], held)
        holding = Counter(name for own in names for name in own)
        self.several = {name for name, count in holding.items() if count > 1}
        self.stages: dict[int, StageRunner] = {}
        self.weights: dict[int, Weights] = {}
        self.parameters: dict[int, dict[str, nn.Parameter]] = {}
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        taken: set[int] = set()  # a weight that two pieces share belongs to the first
        for p, piece in enumerate(pieces):
            if rank not in self.ranks[p]:
                continue
            learned = [(n, x) for n, x in piece.parameters.items() if x.requires_grad]
            self.parameters[p] = {n: x for n, x in learned if id(x) not in taken}
            taken |= {id(x) for x in self.parameters[p].values()}
            if optimizer is not None and self.parameters[p]:
                self.optimizers[p] = optimizer(list(self.parameters[p].values()))
            if self.asynchronous:
                self.weights[p] = Weights(piece.module, 2 if schedule.versions == "two" else 1)
                piece = replace(piece, module=self.weights[p])
            # rounds of asynchronous schedules differ from piece to piece: `show` takes their mean
            share = 1 if self.asynchronous else schedule.microbatches
            self.stages[p] = StageRunner(
                piece, p == self.last, training, share, p in recompute, self.recorder
            )

    @property
    def losses(self) -> Mapping[int, Tensor]:
        """Losses of the last pass, by microbatch, as far as they were computed on this rank.

        In a tensor group all ranks have them.
        """
        return self.stages[self.last].losses if self.last in self.stages else {}

    @property
    def results(self) -> Mapping[int, Tensors]:
        """Outputs of the last pass of an inference by microbatch, on the rank of the last piece."""
        return self.stages[self.last].results if self.last in self.stages else {}

    def run(self, data: Data) -> None:
        """Do all actions of the schedule once: a batch, or all batches of an asynchronous one.

        `data` is called with the number of each microbatch that this rank's first piece runs.
        """
        self.transport.start()
        for weights in self.weights.values():
            weights.restart()
        for stage in self.stages.values():
            stage.clear()
            for parameter in stage.piece.module.parameters():
                parameter.grad = None
        added: set[int] = set()
        for action in self.row:
            piece, kind, j = action
            if kind == Kind.F:
                self._forward(piece, j, data)
            elif kind in (Kind.B, Kind.I):
                self._backward(piece, j, whole=kind == Kind.B)
            elif kind == Kind.W:
                self.stages[piece].backward_weights(j)
            elif kind == Kind.REDUCE_GRAD:
                added.add(piece)
                with self._timed(action):
                    self.sums.add_up(self._of_replicas(piece))
            elif self.asynchronous:
                with self._timed(action):
                    self.weights[piece].show(j, self.sizes[piece])
                    self.sums.add_up(self._of_replicas(piece))
                    self.weights[piece].step(self.optimizers.get(piece))
        if self.training and not self.asynchronous:
            self._end_batch(added)
        self.transport.finish()

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale the gradients so that those of all pieces have at most this norm.

        For a loop without optimizers: all ranks call it after `run`, before your optimizers step.

        Parameters
        ----------
        max_norm
            Euclidean norm over all gradients of the model, of which copies count once.

        Returns
        -------
        Tensor
            The norm before.
        """
        own = {n: x for parameters in self.parameters.values() for n, x in parameters.items()}
        holders, group = dict(self.sums.holders), self.tensor_groups.of(dist.get_rank())
        for stage in self.stages.values():
            module = stage.piece.module
            if isinstance(module, ShardedStage):
                holders |= {name: holders[name].union(group) for name in module.copied}
        return clip_norm(own, holders, max_norm)

    def _forward(self, p: int, j: int, data: Data) -> None:
        inputs = self.transport.receive(Message(p - 1, False, j)) if p else data(j)
        if p in self.weights:
            updates = None
            if self.schedule.versions == "two":
                updates = max(j // self.sizes[p] - 1, 0)
            self.weights[p].begin(j, updates)
        outputs = self.stages[p].forward(j, inputs)
        if p < self.last:
            self.transport.send(Message(p, False, j), outputs)

    def _backward(self, p: int, j: int, *, whole: bool) -> None:
        gradients = self.transport.receive(Message(p + 1, True, j)) if p < self.last else ()
        if p in self.weights:
            self.weights[p].resume(j)
        stage = self.stages[p]
        made = stage.backward(j, gradients) if whole else stage.backward_inputs(j, gradients)
        if p in self.weights:
            self.weights[p].collect(j // self.sizes[p])
        if p > 0:
            self.transport.send(Message(p, True, j), made)

    def _timed(self, action: Action) -> AbstractContextManager[None]:
        return nullcontext() if self.recorder is None else self.recorder.during(action)

    def _of_replicas(self, piece: int) -> dict[str, nn.Parameter]:
        """Return the parameters of a piece that its replicas have and nobody else."""
        return {n: x for n, x in self.parameters[piece].items() if n not in self.several}

    def _end_batch(self, added: set[int]) -> None:
        """All-reduce remaining gradients in an order equal on all ranks, and update."""
        rest: dict[str, nn.Parameter] = {}
        for piece, own in self.parameters.items():
            done = self._of_replicas(piece) if piece in added else {}
            rest |= {n: x for n, x in own.items() if n not in done}
        self.sums.add_up(rest)
        for piece, optimizer in self.optimizers.items():
            with self._timed(Action(piece, Kind.STEP)):
                optimizer.step()


def stage_chain(ranks: Ranks, world: int, *, training: bool) -> StageGraph:
    """Return stages for pieces of which each hands its live set to the next.

    Parameters
    ----------
    ranks
        Ranks of each piece.
    world
        Number of ranks.
    training
        Whether there are backward passes.

    Returns
    -------
    StageGraph
        Stages whose passes all take the time 1, on devices without limits of memory.

    Examples
    --------
    >>> stages = stage_chain([[0], [1, 2]], 3, training=True)
    >>> stages.devices, stages.replicas
    (('rank 0', 'rank 1', 'rank 2'), ((0,), (1, 2)))
    """
    count = [1.0] * len(ranks)
    stages = chain(count, count if training else None, replicas=ranks)
    return replace(
        stages,
        devices=tuple(f"rank {r}" for r in range(world)),
        capacity_bytes=np.full(world, np.inf),
    )


def check(schedule: Schedule, stages: StageGraph, pieces: Sequence[PieceModule]) -> None:
    """Raise InputError unless the loop can execute a schedule; see `Loop`."""
    kinds = {int(kind) for table in schedule.actions for kind in table[:, 1].tolist()}
    validate(schedule, stages)
    if schedule.versions == "one":
        return
    if kinds & {Kind.I, Kind.W}:
        raise InputError(
            f"schedule {schedule.name}: it is asynchronous and splits backward passes; use B"
        )
    first: dict[int, int] = {}
    for p, piece in enumerate(pieces):
        for name, parameter in piece.parameters.items():
            if first.setdefault(id(parameter), p) != p:
                raise InputError(
                    f"schedule {schedule.name}: {name} is in pieces {first[id(parameter)]} and "
                    f"{p}, whose versions differ; plan so that they are one piece, or use 1f1b"
                )
