"""Linear relaxation of the integer program of a pipeline's order."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from pyomo.common.gc_manager import PauseGC

from ...formulations.program import quiet_pyomo
from ...formulations.stated import passes
from ...instances import InfeasibleError
from ...runtime.simulate.stages import StageGraph
from ..best_schedule import schedule_instance, usual_orders
from .relax import Relaxation, read_relaxation, solved


def relax_schedule(
    stages: StageGraph,
    microbatches: int,
    *,
    activation_bytes: Sequence[float] | None = None,
    split: bool = True,
) -> Relaxation:
    """State the integer program of `best_schedule` and solve it without whole numbers.

    Parameters
    ----------
    stages, microbatches, activation_bytes, split
        As in `best_schedule`.

    Returns
    -------
    Relaxation
        Bound, size, and when each pass begins and ends: passes of one device may overlap. The
        bound is that of floating-point numbers, and no certificate; `best_schedule` gives those.

    Raises
    ------
    InputError
        If a stage has replicas.
    InfeasibleError
        If the memory is too small, even so.

    Examples
    --------
    >>> import stagecut
    >>> stages = stagecut.runtime.simulate.chain([2.0, 2.0], [4.0, 1.0])
    >>> weak = stagecut.api.relax_schedule(stages, microbatches=3)
    >>> best = stagecut.best_schedule(stages, microbatches=3)
    >>> weak.bound <= best.simulation.makespan, weak.passes.shape
    (True, (18, 3))
    """
    import pandas as pd

    begin = time.monotonic()
    instance, actions = schedule_instance(stages, microbatches, activation_bytes, split=split)
    operations = instance.operations
    known = usual_orders(stages, microbatches, actions).values()
    horizon = min(map(instance.makespan, known), default=math.inf)
    if not math.isfinite(horizon):
        horizon = sum(operation.duration for operation in operations)
    with PauseGC(), quiet_pyomo():
        stated = passes(instance, horizon)
        found = solved(stated)
    if found is None:
        raise InfeasibleError("schedule: the memory is too small for any order, even in parts")
    relaxation = read_relaxation("order of passes", stated, *found, begin)
    compiled, x = found[0], found[1].x
    assert x is not None
    begins = [compiled.value(stated.model.s[i], x) * stated.scale for i in range(len(operations))]
    table = pd.DataFrame(
        {
            "device": [stages.devices[operation.device] for operation in operations],
            "begin": begins,
            "end": [b + o.duration for b, o in zip(begins, operations, strict=True)],
        },
        index=pd.Index([operation.name for operation in operations], name="pass"),
    )
    return replace(relaxation, passes=table)
