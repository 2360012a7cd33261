"""What stage slots of the integer program for training plans can be, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...instances import InfeasibleError
from .staging import Staging


@dataclass(frozen=True)
class Option:
    """What a slot can be: number of a kind in the staging, of a degree, of a divisor, and y."""

    kind: int
    degree: int
    divisor: int
    in_flight: int


@dataclass(frozen=True, eq=False)
class StageOptions:
    """The slots, their options, and the coefficients of the program.

    Parameters
    ----------
    scale
        Times are divided by this.
    """

    staging: Staging
    scale: float

    @cached_property
    def slots(self) -> int:
        """How many stages there can be."""
        return len(self.staging.sizes())

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """All options of a slot, with every number of microbatches in flight up to the most."""
        staging = self.staging
        gpipe = staging.problem.in_flight == "gpipe"
        most = min(staging.most_replicas, int(staging.count.sum()))
        return tuple(
            Option(k, t, p, y)
            for k in range(len(staging.kinds))
            for t, degree in enumerate(staging.degrees.tolist())
            for p, d in enumerate(staging.divisors.tolist())
            if degree * d <= staging.count[k] and d <= most
            for y in ([staging.in_flight(d, 0)] if gpipe else range(1, -(-most // d) + 1))
        )

    @cached_property
    def choices(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each unit, the options that it fits into alone, with its configurations there.

        Raises
        ------
        InfeasibleError
            If a layer fits into none.
        """
        staging = self.staging
        found = []
        for v in range(staging.size):
            own = tuple(
                (o, c)
                for o, option in enumerate(self.options)
                if staging.allowed[v, option.divisor]
                for c in staging.choices(v, option.degree)
                if self.size(c, o) <= staging.capacity[option.kind]
            )
            if not own:
                node = staging.workload.ids[int(staging.node_of[v])]
                raise InfeasibleError(f"node {node} alone fits on no device; give more memory")
            found.append(own)
        return tuple(found)

    def replicas(self, o: int) -> int:
        """Return d of an option."""
        return int(self.staging.divisors[self.options[o].divisor])

    def width(self, o: int) -> int:
        """Return how many devices an option takes."""
        return self.replicas(o) * int(self.staging.degrees[self.options[o].degree])

    def size(self, c: int, o: int) -> float:
        """Return the bytes of a configuration under an option."""
        staging = self.staging
        y = self.options[o].in_flight
        return float(staging.per_microbatch[c] * y + staging.fixed[c])

    def time(self, c: int, o: int) -> float:
        """Return what a configuration adds to its stage's time, transfers left out."""
        staging, option = self.staging, self.options[o]
        d = self.replicas(o)
        compute = float(staging.time[c] * staging.slowdown[option.kind])
        return (
            (compute + staging.kappa(option.degree, d) * float(staging.weight[c])) / d / self.scale
        )

    def moved(self, c: int, o: int, e: int) -> float:
        """Return what a cut edge adds to the stage of a configuration at its end."""
        staging = self.staging
        low, high = int(staging.sync_start[c]), int(staging.sync_start[c + 1])
        time = float(staging.edge_time[e])
        time += sum(float(staging.sync_time[at]) for at in range(low, high)
                    if staging.sync_edge[at] == e)  # fmt: skip
        return time / self.replicas(o) / self.scale
