"""How long and how well: the limits of a search."""

from __future__ import annotations

from dataclasses import dataclass

from ...instances import InputError


@dataclass(frozen=True)
class Limits:
    """Limits of one search.

    Parameters
    ----------
    seconds
        Wall-clock time, loading of the problem into the solver and presolve counted in;
        None for no limit.
    gap
        Stop once (objective − bound) / objective is at most this.
    nodes
        Stop after this many branch-and-bound nodes (MILP) or rounds (others): a limit that is
        the same on every machine, unlike seconds. None for no limit.
    seed
        Of everything random.

    Raises
    ------
    InputError
        If a limit is negative or no number.

    Examples
    --------
    >>> Limits(seconds=10, gap=0.01).seed
    0
    """

    seconds: float | None = None
    gap: float = 0.0
    nodes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"time limit: {self.seconds:g} s; it must be above 0")
        if not 0 <= self.gap < 1:
            raise InputError(f"gap: {self.gap:g}; it must be at least 0 and below 1 (0.01 is 1 %)")
        if self.nodes is not None and self.nodes < 0:
            raise InputError(f"node limit: {self.nodes}; it must be at least 0")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed: {self.seed}; it must be from 0 to {2**31 - 1}")


#: What the command line and Python stop at unless told otherwise; with `Limits()` they do not.
DEFAULT_SECONDS, DEFAULT_GAP = 60.0, 0.01
#: A mapping's bound is rarely within 1 %, so its time is spent on better ones.
MAPPING_GAP = 0.0

#: The same by problem.
DEFAULT_LIMITS: dict[str, Limits] = {
    "throughput": Limits(DEFAULT_SECONDS, DEFAULT_GAP),
    "iteration": Limits(DEFAULT_SECONDS, DEFAULT_GAP),
    "latency": Limits(DEFAULT_SECONDS, DEFAULT_GAP),
    "training": Limits(DEFAULT_SECONDS, DEFAULT_GAP),
    "mapping": Limits(DEFAULT_SECONDS, MAPPING_GAP),
}
