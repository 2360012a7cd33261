"""Small programs solved in the caller's thread, many in a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import highspy
import numpy as np

from ...formulations.linear import Linear
from ...instances import StagecutError
from ...instances.common.arrays import Floats
from ..core.highs import load


@dataclass(frozen=True, eq=False)
class ProgramEnd:
    """How a program ended."""

    #: No solution is below; infinite if there is none.
    bound: float
    #: The best solution, if one was found.
    x: Floats | None
    #: Its objective.
    value: float


def solve_program(
    linear: Linear,
    seconds: float,
    *,
    relaxed: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> ProgramEnd:
    """Solve a program, or its relaxation, within so many seconds or until it is `stopped`."""
    if relaxed:
        linear = replace(linear, integer=np.zeros(len(linear.cost), np.bool_))
    highs = load(linear, {"threads": 1, "mip_rel_gap": 1e-6, "time_limit": max(0.01, seconds)})

    def interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
        event.data_in.user_interrupt = stopped()

    highs.cbMipInterrupt.subscribe(interrupt)
    if highs.run() == highspy.HighsStatus.kError:
        highs.setOptionValue("threads", 0)
        highs.run()
    status, ends = highs.getModelStatus(), highspy.HighsModelStatus
    if status in (ends.kInfeasible, ends.kUnboundedOrInfeasible):
        return ProgramEnd(np.inf, None, np.inf)
    info = highs.getInfo()
    found = status == ends.kOptimal or info.primal_solution_status == 2
    x = np.array(highs.getSolution().col_value) if found else None
    value = float(info.objective_function_value) if found else np.inf
    if relaxed:
        if status != ends.kOptimal:
            return ProgramEnd(-np.inf, None, np.inf)
        return ProgramEnd(value, x, value)
    if status not in (ends.kOptimal, ends.kTimeLimit, ends.kInterrupt):
        raise StagecutError(f"HiGHS ended with {highs.modelStatusToString(status)!r}")
    return ProgramEnd(float(info.mip_dual_bound), x, value)
