"""Teams of ranks that compute a stage's microbatches together, each with a shard of the weights.

A schedule has a row for the first rank of a team, and the others do the same actions. All of them
have what enters and leaves a stage whole, so that a rank sends it to one or several of the next
team, and gets it from one of the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..gradients import holders_of
from ..sharded.collectives import Place
from .transport import Message, Ranks, Routes


@dataclass(frozen=True)
class Teams:
    """Team of each rank.

    `members` has the ranks of each team of several, the one that the schedule names first. All
    members have weights in `tied`, which several layers have, whole, and the sum of the gradients
    of all ranks that have one is its gradient.
    """

    members: tuple[tuple[int, ...], ...] = ()
    tied: frozenset[str] = frozenset()

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the team of a rank; that of most is the rank alone."""
        return next((team for team in self.members if rank in team), (rank,))

    def routes(self, routes: Routes) -> Routes:
        """Return each rank's messages, from those of the first ranks of teams."""
        found: dict[tuple[int, int], Sequence[Message]] = {}
        for (source, to), messages in routes.items():
            senders = self.of(source)
            for k, receiver in enumerate(self.of(to)):
                found[senders[k % len(senders)], receiver] = messages
        return found

    def holders(
        self, names: Sequence[Sequence[str]], ranks: Ranks
    ) -> list[dict[str, frozenset[int]]]:
        """Return which ranks have the same part of each weight, of first parts, second ones, …."""
        most = max((len(team) for team in self.members), default=1)
        found: list[dict[str, frozenset[int]]] = []
        for k in range(most):
            alike, everyone = [], []
            for where in ranks:
                teams = [self.of(rank) for rank in where]
                alike.append([team[k % len(team)] for team in teams])
                everyone.append([rank for team in teams for rank in team])
            tied = [[name for name in own if name in self.tied] for own in names]
            others = [[name for name in own if name not in self.tied] for own in names]
            found.append(holders_of(others, alike) | holders_of(tied, everyone))
        return found


def join_teams(teams: Teams, device: torch.device) -> Place | None:
    """Return this rank's place in its team; None if it works alone. All ranks call this."""
    if not teams.members:
        return None
    group, _ = dist.new_subgroups_by_enumeration([list(team) for team in teams.members])
    if group is None:
        return None
    at, mesh = dist.get_rank(group), DeviceMesh.from_group(group, device.type)
    return Place((group.size(),), (at,), (group.group_name,), device, mesh)
