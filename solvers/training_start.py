"""How every method for training plans begins: the statement, and the bounds that are at hand."""

from __future__ import annotations

import math

from ..formulations.task import Task
from ..formulations.training import Staging, state_staging
from ..formulations.training_bound import simple_bound
from ..instances import Solution
from .search import Search


def staged(task: Task, search: Search[Solution]) -> Staging:
    """State a training task, and raise the bound to what needs no search."""
    staging = state_staging(task)
    with search.phase("bound"):
        bound = simple_bound(staging)
    if math.isfinite(bound):  # else a layer fits on no device: the method says which
        search.raise_bound(bound, "work over devices, memory and the longest layer")
    return staging
