"""Resources of a solve: limits of time, gap and nodes, their defaults by problem, and processes."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from ...instances import InputError


@dataclass(frozen=True)
class Limits:
    """Limits of one search.

    Parameters
    ----------
    seconds
        Wall-clock time, including loading the problem into the solver, and presolve;
        None for no limit.
    gap
        Stop once (objective − bound) / objective is at most this.
    cheap_gap
        Once `gap` is reached, go on to this smaller gap while that is cheap, see `patience`;
        default: stop at `gap`.
    nodes
        Stop after this many branch-and-bound nodes (MILP) or rounds (other methods): unlike
        seconds, a limit that is the same on every machine. None for no limit.
    seed
        Seed of all random numbers.
    since
        `time.monotonic()` from which the seconds count, such as when the program began;
        default: when the search begins.

    Raises
    ------
    InputError
        If a limit is negative or not a number.

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
    since: float | None = None

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
        """The smallest gap at which a search stops: `cheap_gap`, or `gap`.

        With a node limit it is `gap`, so that the search ends alike on every machine.
        """
        return self.gap if self.cheap_gap is None or self.nodes is not None else self.cheap_gap

    def patience(self, reached: float) -> float:
        """Return for how many seconds a search that has reached `gap` goes on to `cheap_gap`.

        As long again as the `reached` seconds it took, and at least `CHEAP_PART` of the time limit.

        Examples
        --------
        >>> Limits(seconds=60.0, gap=0.01, cheap_gap=1e-4).patience(10.0)
        10.0
        """
        if self.least_gap == self.gap:
            return 0.0
        return max(reached, CHEAP_PART * (self.seconds or 0.0))


def checked(limits: object) -> Limits:
    """Return limits that a user passed to a function; InputError unless they are `Limits`."""
    if isinstance(limits, Limits):
        return limits
    seconds = limits if isinstance(limits, int | float) else 20
    raise InputError(f"limits: {limits!r}; write Limits(seconds={seconds})")


#: Part of the time limit that counts as cheap in any case. Measured: see docs/certificates.md.
CHEAP_PART = 0.05

#: Default limits of the command line and of Python; `Limits()` sets none of them.
DEFAULT_SECONDS, DEFAULT_GAP, DEFAULT_CHEAP_GAP = 60.0, 0.01, 1e-4
#: Default gap of mappings: their bounds are rarely within 1 %, so all time goes into better plans.
MAPPING_GAP = 0.0

_BY_GAP = Limits(DEFAULT_SECONDS, DEFAULT_GAP, cheap_gap=DEFAULT_CHEAP_GAP)

#: Default limits by problem.
DEFAULT_LIMITS: dict[str, Limits] = {
    "throughput": _BY_GAP,
    "latency": _BY_GAP,
    "pipeline": _BY_GAP,
    "mapping": Limits(DEFAULT_SECONDS, MAPPING_GAP),
    "sharding": _BY_GAP,
}


@dataclass(frozen=True)
class Workers:
    """The number of processes that search at a time, and where they run.

    Parameters
    ----------
    count
        Number of processes, including this one; default: as many as cores and memory allow or,
        with `scheduler`, one more than its workers have threads.
    deterministic
        Let the processes exchange what they find only at the end, so that with node limits
        the result depends only on seed and `count`.
    scheduler
        Address of a Dask scheduler, whose workers run all processes but this one.

    Raises
    ------
    InputError
        If `count` is below 1.

    Examples
    --------
    >>> Workers(2).deterministic
    False
    """

    count: int | None = None
    deterministic: bool = False
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise InputError(f"workers: {self.count}; it must be at least 1")


#: Bytes of memory that a worker may take.
MEMORY_BYTES = 512 * 2**20


def usual_count() -> int:
    """Return the default number of processes: one per usable core, as far as memory allows."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, psutil.virtual_memory().available // MEMORY_BYTES))
