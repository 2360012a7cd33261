"""Tensor-parallel groups: ranks that run a stage's microbatches, each on a shard of the weights.

A schedule has a row for the first rank of a group, and the others do the same actions. Each of them
has the inputs and outputs of a stage whole: it gets them from one rank of the group before, and
sends them to one or several ranks of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..gradients import holders_of
from ..sharded.collectives import MeshPosition
from .transport import Message, Ranks, Routes


@dataclass(frozen=True)
class TensorGroups:
    """Tensor-parallel group of each rank.

    `members` has the ranks of each group of several, first the one of the schedule's row. Weights
    in `tied` belong to several layers: all members have them whole, and their gradients are summed
    over all ranks that have them.
    """

    members: tuple[tuple[int, ...], ...] = ()
    tied: frozenset[str] = frozenset()

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the group of a rank; without tensor parallelism it is the rank alone."""
        return next((group for group in self.members if rank in group), (rank,))

    def routes(self, routes: Routes) -> Routes:
        """Return the messages of all ranks, from those of the first ranks of groups."""
        found: dict[tuple[int, int], Sequence[Message]] = {}
        for (source, to), messages in routes.items():
            senders = self.of(source)
            for k, receiver in enumerate(self.of(to)):
                found[senders[k % len(senders)], receiver] = messages
        return found

    def holders(
        self, names: Sequence[Sequence[str]], ranks: Ranks
    ) -> list[dict[str, frozenset[int]]]:
        """Return the ranks with the k-th part of each weight, by its name, for each k."""
        most = max((len(group) for group in self.members), default=1)
        found: list[dict[str, frozenset[int]]] = []
        for k in range(most):
            alike, everyone = [], []
            for where in ranks:
                groups = [self.of(rank) for rank in where]
                alike.append([group[k % len(group)] for group in groups])
                everyone.append([rank for group in groups for rank in group])
            tied = [[name for name in own if name in self.tied] for own in names]
            others = [[name for name in own if name not in self.tied] for own in names]
            found.append(holders_of(others, alike) | holders_of(tied, everyone))
        return found


def join_tensor_group(tensor_groups: TensorGroups, device: torch.device) -> MeshPosition | None:
    """Return this rank's position in its group; None without one. All ranks call this."""
    if not tensor_groups.members:
        return None
    group, _ = dist.new_subgroups_by_enumeration([list(group) for group in tensor_groups.members])
    if group is None:
        return None
    at, mesh = dist.get_rank(group), DeviceMesh.from_group(group, device.type)
    return MeshPosition((group.size(),), (at,), (group.group_name,), device, mesh)
