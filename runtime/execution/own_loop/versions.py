"""Weight versions of asynchronous schedules, and their updates.

A *round* is the set of microbatches whose gradients make one update of a stage:

- synchronous schedules: the whole batch; the update comes after it;
- PipeDream: one microbatch on each replica of the stage, as in data parallelism. A forward pass
  uses the newest weights, and its backward pass the same ones (weight stashing). Stages do not
  agree on a version (no vertical sync);
- PipeDream-2BW: a batch of m microbatches. Those of batch k use W(max(k − 1, 0)), where W(n) are
  the weights after n updates; all stages agree.

Gradients of a round are averaged over its microbatches.

References
----------
Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
section 3.3. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021,
section 3.1.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ....instances import InputError
from ...schedules import Action, Kind, Schedule
from ...schedules.validate import execution_steps
from ...simulate.stages import StageGraph
from .transport import Ranks


def round_sizes(schedule: Schedule, ranks: Ranks, microbatches: int) -> list[int]:
    """Return the number of microbatches in a round of each piece; a batch has `microbatches`.

    Raises InputError if the schedule's microbatches are no whole number of rounds.
    """
    sizes = {
        "one": [schedule.microbatches] * len(ranks),
        "in flight": [len(replicas) for replicas in ranks],
        "two": [microbatches] * len(ranks),
    }[schedule.versions]
    for piece, size in enumerate(sizes):
        if schedule.microbatches % size:
            raise InputError(
                f"schedule {schedule.name}: {schedule.microbatches} microbatches; they must be a "
                f"multiple of {size}, of which each makes one update of piece {piece}"
            )
    return sizes


def with_updates(schedule: Schedule, stages: StageGraph, sizes: list[int]) -> list[list[Action]]:
    """Return the actions of each rank with a STEP of a piece after each of its rounds.

    The microbatch of a STEP is the number of its round. Where PipeDream's schedule has an
    all-reduce of the round, the piece steps there. Else, a stage with one replica steps right
    after the last backward pass of the round. Replicas wait for each other, so each of them steps
    at the action that it does when the last of them gets there, if all actions take equally long:
    this point is known before the run, and waiting there cannot deadlock. Rounds step in the order
    in which the schedule completes them.

    All slices of 2BW's all-reduce are one, as its weights are not used before it is complete.
    """
    steps, _ = execution_steps(schedule, stages)
    ends: dict[tuple[int, int], int] = {}  # piece, round → when its last backward pass runs
    reduces = set()
    for rank, when in enumerate(steps):
        for (piece, kind, j), step in zip(schedule.of(rank), when.tolist(), strict=True):
            if kind == Kind.B:
                key = (piece, j // sizes[piece])
                ends[key] = max(step, ends.get(key, -1))
            elif kind == Kind.REDUCE_GRAD and schedule.versions == "in flight":
                reduces.add(piece)
    rows = []
    for rank, when in enumerate(steps):
        marked = []
        for i, (action, step) in enumerate(zip(schedule.of(rank), when.tolist(), strict=True)):
            if action.kind != Kind.REDUCE_GRAD:
                marked.append((step, 0, i, action))
            elif action.stage in reduces:
                marked.append((step, 0, i, Action(action.stage, Kind.STEP, action.microbatch)))
        marked += [
            (step, 1, n, Action(piece, Kind.STEP, n))
            for (piece, n), step in ends.items()
            if rank in stages.replicas[piece] and piece not in reduces
        ]
        rows.append([action for *_, action in sorted(marked, key=lambda m: m[:3])])
    return rows


def check_two_versions(rows: list[list[Action]], sizes: list[int]) -> None:
    """Raise InputError if 2BW would begin a forward pass before its weights are updated.

    Then a batch has fewer microbatches than the pipeline keeps in flight.
    """
    for row in rows:
        made = dict.fromkeys(range(len(sizes)), 0)
        for piece, kind, j in row:
            if kind == Kind.STEP:
                made[piece] += 1
            elif kind == Kind.F and j // sizes[piece] - 1 > made[piece]:
                raise InputError(
                    f"schedule 2bw: batches of {sizes[piece]} microbatches are too small for "
                    f"this pipeline: piece {piece} starts microbatch {j} before batch "
                    f"{j // sizes[piece] - 2} has come back; use more microbatches per batch"
                )


@dataclass(eq=False)
class Version:
    """Weights of a piece after some updates, with the number of microbatches in flight by them.

    The tensors are leaves of autograd that share memory with the parameters until these change.
    """

    tensors: dict[str, Tensor]
    users: int = 0


class Weights(nn.Module):  # type: ignore[misc]  # torch is not typed for mypy here
    """Module of a piece that runs each microbatch with its version of the weights.

    The parameters are the newest version. Before they change in place, a version that is still
    needed moves to memory of its own. The newest `keep` versions stay in any case: 1, or 2 for 2BW.
    """

    def __init__(self, module: nn.Module, keep: int) -> None:
        super().__init__()
        self.module = module
        self.keep = keep
        self.learned = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.restart()

    def restart(self) -> None:
        """Begin a pass over the schedule, with the newest weights as the only version."""
        self.updates = 0
        self.kept = deque([self._newest()])
        self.of: dict[int, Version] = {}
        self.rounds: dict[int, dict[str, Tensor]] = {}  # sums of gradients
        self.active = self.kept[-1]

    def begin(self, microbatch: int, updates: int | None) -> None:
        """Choose the weights of a microbatch: those after some updates, by default the newest."""
        back = 0 if updates is None else self.updates - updates
        self.active = self.of[microbatch] = self.kept[-1 - back]
        self.active.users += 1

    def resume(self, microbatch: int) -> None:
        """Go back to the weights of a microbatch, for its backward pass."""
        self.active = self.of.pop(microbatch)
        self.active.users -= 1

    def forward(self, *inputs: Tensor) -> Any:
        """Run the module with the chosen weights."""
        return functional_call(self.module, self.active.tensors, inputs)

    def collect(self, round_: int) -> None:
        """Add the gradients of the chosen weights to those of a round."""
        sums = self.rounds.setdefault(round_, {})
        for name, tensor in self.active.tensors.items():
            if tensor.grad is not None:
                sums[name] = sums[name] + tensor.grad if name in sums else tensor.grad
                tensor.grad = None
        self.active = self.kept[-1]

    def show(self, round_: int, size: int) -> None:
        """Give the mean gradients of a round, of `size` microbatches, to the parameters."""
        sums = self.rounds.pop(round_, {})
        for name, parameter in self.learned.items():
            parameter.grad = sums[name] / size if name in sums else None

    def step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Update the weights with the gradients that the parameters have."""
        if self.keep > 1 or self.kept[-1].users:
            for parameter in self.learned.values():
                parameter.data = parameter.data.clone()
        if optimizer is not None:
            optimizer.step()
        for parameter in self.learned.values():
            parameter.grad = None
        self.updates += 1
        self.kept.append(self._newest())
        while len(self.kept) > self.keep:
            self.kept.popleft()

    def _newest(self) -> Version:
        return Version({n: p.data.requires_grad_() for n, p in self.learned.items()})
