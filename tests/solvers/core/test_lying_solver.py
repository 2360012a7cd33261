"""Every integer-program driver against a solver that lies: no lie becomes a certificate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from lies import (
    DRIVERS,
    LIES,
    asked,
    bound_of_nothing,
    bound_slightly_too_high,
    bound_too_high,
    failure,
    infeasible,
    lied_to,
    silence,
)

from stagecut import Limits, Result, best_schedule, verify
from stagecut.runtime.simulate import chain
from stagecut.solvers.core import highs, milp_driver
from stagecut.solvers.core.highs import Outcome


@cache
def honest(driver: str) -> Result:
    result = asked(driver)
    assert result.plan is not None
    return result


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("driver", DRIVERS)
def test_no_lie_becomes_a_certificate(driver: str, lie: Callable[..., Outcome]) -> None:
    truth = honest(driver)
    assert truth.plan is not None
    result = asked(driver, lie)
    assert result.plan is not None  # that known before the solver was asked
    verify(DRIVERS[driver]()[0], result.plan)
    if result.bound > truth.plan.objective * (1 + 1e-6):
        # a lie that nothing known contradicts, and too large a program to prove it again
        assert lie is bound_slightly_too_high
        assert result.bound_origin.endswith("(HiGHS)")
    elif result.status == "optimal":
        assert result.plan.objective == pytest.approx(truth.plan.objective, rel=2e-6)
    if lie in (infeasible, bound_too_high, bound_of_nothing):
        assert any("a defect" in note for note in result.notes), result.notes
    if lie is failure:
        assert any("failed" in note for note in result.notes), result.notes
    if lie is silence and result.status != "optimal":
        assert result.limit == "time"


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_no_lie_becomes_the_bound_of_a_schedule(lie: Callable[..., Outcome]) -> None:
    stages = chain([3.0, 1.0, 2.0], [1.0, 4.0, 2.0])
    honest = best_schedule(stages, microbatches=2)
    assert honest.status == "optimal"
    with lied_to(lie):
        lied = best_schedule(stages, microbatches=2, limits=Limits(seconds=2))
    assert lied.bound <= honest.simulation.makespan * (1 + 1e-6)
    if lied.status == "optimal":
        assert lied.simulation.makespan == pytest.approx(honest.simulation.makespan)


def test_nothing_but_the_driver_turns_words_of_a_solver_into_bounds() -> None:
    assert milp_driver.run_highs is highs.run_highs
