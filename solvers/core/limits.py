"""Limits of a search: time, gap, nodes, seed; and their defaults by problem."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    cheap_gap
        Having reached `gap`, go on to this one while that is cheap, as `patience` has it; default:
        stop at `gap`.
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
    cheap_gap: float | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"time limit: {self.seconds:g} s; it must be above 0")
        if not 0 <= self.gap < 1:
            raise InputError(f"gap: {self.gap:g}; it must be at least 0 and below 1 (0.01 is 1 %)")
        if self.cheap_gap is not None and not 0 <= self.cheap_gap <= self.gap:
            raise InputError(
                f"cheap gap: {self.cheap_gap:g}; it must be at least 0 and at most the gap"
            )
        if self.nodes is not None and self.nodes < 0:
            raise InputError(f"node limit: {self.nodes}; it must be at least 0")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed: {self.seed}; it must be from 0 to {2**31 - 1}")

    @property
    def least_gap(self) -> float:
        """The least gap that a search goes on to.

        With a limit of nodes that is `gap`, so that the search ends alike on every machine.
        """
        return self.gap if self.cheap_gap is None or self.nodes is not None else self.cheap_gap

    def patience(self, reached: float) -> float:
        """Return how many seconds are cheap beyond a `gap` that was reached after `reached`.

        They are as many again, and at least `CHEAP_PART` of the time limit.

        Examples
        --------
        >>> Limits(seconds=60.0, gap=0.01, cheap_gap=1e-4).patience(10.0)
        10.0
        """
        if self.least_gap == self.gap:
            return 0.0
        return max(reached, CHEAP_PART * (self.seconds or 0.0))


def checked(limits: object) -> Limits:
    """Return limits as they were given to a function.

    Raises
    ------
    InputError
        If it is something else: seconds, perhaps.
    """
    if isinstance(limits, Limits):
        return limits
    seconds = limits if isinstance(limits, int | float) else 20
    raise InputError(f"limits: {limits!r}; write Limits(seconds={seconds})")


#: Part of the time limit that is always cheap. Measured: see docs/certificates.md.
CHEAP_PART = 0.05

#: What the command line and Python stop at unless told otherwise; with `Limits()` they do not.
DEFAULT_SECONDS, DEFAULT_GAP, DEFAULT_CHEAP_GAP = 60.0, 0.01, 1e-4
#: A mapping's bound is rarely within 1 %, so its time is spent on better ones.
MAPPING_GAP = 0.0

_BY_GAP = Limits(DEFAULT_SECONDS, DEFAULT_GAP, cheap_gap=DEFAULT_CHEAP_GAP)

#: The same by problem.
DEFAULT_LIMITS: dict[str, Limits] = {
    "throughput": _BY_GAP,
    "latency": _BY_GAP,
    "pipeline": _BY_GAP,
    "mapping": Limits(DEFAULT_SECONDS, MAPPING_GAP),
    "sharding": _BY_GAP,
}


def limits_for(
    problem: str, seconds: float, gap: float | None, nodes: int | None = None, seed: int = 0
) -> Limits:
    """Return the limits that options of a command ask for.

    Parameters
    ----------
    gap
        Exactly where to stop; default: as the problem's default limits have it.
    """
    if gap is not None:
        return Limits(seconds, gap, nodes, seed)
    return replace(DEFAULT_LIMITS[problem], seconds=seconds, nodes=nodes, seed=seed)
