"""The executor that an option asks for: processes of this machine, or a Dask scheduler."""

from __future__ import annotations

from ....instances import InputError
from .channel import Executor
from .processes import LocalProcesses


def executor_of(size: int, scheduler: str | None = None) -> Executor:
    """Return processes on this machine, so many at a time, or the workers of a Dask scheduler.

    Raises
    ------
    InputError
        If there is no such scheduler, or Dask is not installed.
    """
    if scheduler is None:
        return LocalProcesses(size)
    try:
        from .dask_cluster import DaskCluster
    except ImportError:
        raise InputError(
            "--scheduler: dask is not installed; in Stagecut's folder: "
            "pip install -c constraints.txt '.[cluster]'"
        ) from None
    return DaskCluster(scheduler)
