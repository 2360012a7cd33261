"""The number and the place of the processes of a solve."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from ....instances import InputError


@dataclass(frozen=True)
class Workers:
    """The number of processes that search at a time, and where they run.

    Parameters
    ----------
    count
        Processes, this one counted; default: as many as there are cores and memory for, with
        `scheduler` one and as many as its workers have threads.
    deterministic
        Let the processes exchange what they find at the end alone, so that with limits of nodes
        the result depends on seed and `count` only.
    scheduler
        Address of a Dask scheduler, on whose workers all but this process run.

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
    """Return how many processes fit: one per core that this one may use, if memory has room."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, psutil.virtual_memory().available // MEMORY_BYTES))
