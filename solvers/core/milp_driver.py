"""Driver of all integer programs: decides which claims of a solver become certificates.

A problem states its program and how to read a solution (`IntegerProgram`). Everything between that
and the search is here: which bound is believed, by how much tolerances weaken it, how impossible
answers are handled, and why the solve ended.

A solver's claim is no proof: its tolerances are absolute, and its presolve loses small numbers
beside large ones. Therefore

- the program is tightened first (`tighten`): what no solution as good as the incumbent contains is
  fixed, in safe arithmetic, and its coefficients, above all large ones, leave the rows;
- where entries beyond the tolerances remain (`LARGEST`), a bound counts only if `check` proves it
  again, independently of tolerances; and the program is stated anew whenever a much better
  solution makes such entries fewer;
- infeasibility counts only if `check` proves it, and never while a solution is known;
- the search refuses a bound above a verified solution, and all others of its origin;
- solutions are judged by the verifier, like those of any other method.

The solver alone is believed only where all entries are ordinary and the program is too large for
`check`: then the origin of the bound names the solver; otherwise it ends with "proved again".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import numpy as np
from pyomo.common.gc_manager import PauseGC

from ...formulations.linear import Linear, SolverError
from ...formulations.program import Program
from ...instances import InfeasibleError, StagecutError
from ...instances.common.arrays import Floats
from .compiled_model import Compiled, compile_model
from .highs import Outcome, run_highs
from .other_solvers import run_other
from .proofs import ProofOutcome, check
from .search import OPTIMAL_GAP, Clock, S, Search
from .tighten import tighten

#: Objective, roughly, to which programs are scaled when stated: the incumbent's if there is one.
STATED_OBJECTIVE = 1000.0

#: Largest excess of a bound due to a solver's tolerances, relative to `STATED_OBJECTIVE` or to the
#: bound if that is larger: the tolerance on a row is 1e-6, and this allows for some hundred rows
#: that each use it up. It is below `search.OPTIMAL_GAP` even if the incumbent is half of what the
#: program was stated for, so that an optimum that was found is called optimal.
BOUND_SLACK = 2e-7

#: Largest entry of a row with which HiGHS is believed. In programs with objectives of about 1000,
#: wrong answers were seen from 1e10 on (transfers of 1e7 beside a max-load of 1), none at 1e9.
LARGEST = 1e8

#: Part of the objective for which a program was stated, below which it is stated anew: what the
#: better solution rules out leaves it, and its tolerances weigh less.
MUCH_BETTER = 0.5

#: Columns up to which answers are proved again, and the seconds for this: for an answer believed
#: anyway, a constant and a part of the time of its solve; for one that is not, much more.
CHECK_COLUMNS = 1500
CHECK_SECONDS, CHECK_PART, UNBELIEVED_SECONDS = 2.0, 0.25, 20.0


@dataclass(frozen=True, eq=False)
class IntegerProgram(Generic[S]):
    """An integer program, and how to read a solver's values as a solution."""

    # the program as arrays; its objective is minimised, and about `STATED_OBJECTIVE`
    compiled: Compiled
    # returns the solution for values of the columns, which may violate rules; None for a
    # relaxation, which only has a bound
    read: Callable[[Floats], S] | None
    scale: float  # factor from the program's objective to the search's
    origin: str  # name of the proof of the bound
    infeasible: str  # message to the user if it is proved infeasible
    # values of the columns for the incumbent, NaN where unknown; None without an incumbent
    start: Floats | None = None
    fixed: bool = False  # whether it does not depend on the incumbent


def integer_program(
    stated: Program,
    solution: object,
    *,
    origin: str,
    infeasible: str,
) -> IntegerProgram[Any]:
    """Return a stated program as arrays, with its own `read`, and its `start` for a solution."""
    with PauseGC():
        compiled = compile_model(stated.model)
    values = None if solution is None else stated.start(solution)
    return IntegerProgram(
        compiled=compiled,
        read=lambda x: stated.read(lambda var: compiled.value(var, x)),
        scale=stated.scale,
        origin=origin,
        infeasible=infeasible,
        start=None if values is None else compiled.start(values),
    )


class TimeIsUp(Exception):
    """Signal of `state` in `solve_program` that the search has to stop."""


def solve_program(
    state: Callable[[], IntegerProgram[S]],
    search: Search[S],
    *,
    solver: str = "highs",
    seconds: float = math.inf,
    gap: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Solve the program that `state` returns for the search's present incumbent.

    Offer its solutions, raise the bound, record the limit that ended it.

    `state` may raise `InfeasibleError` if there is provably no solution, and `TimeIsUp`. `solver`
    is ``highs`` or a solver known to Pyomo, with options under its own names; `seconds` and `gap`
    limit this solve as in `run_highs`.
    """
    while not search.should_stop():
        try:
            with search.phase("build"):
                program = state()
        except TimeIsUp:
            return
        except InfeasibleError as error:
            search.prove_infeasible(str(error))
            return
        solve = _Solve(program, search, solver, options)
        if not solve.tightened():
            return
        outcome = solve.run(seconds, gap)
        if outcome is None:
            return
        if solve.worth_stating_anew and outcome.limit not in ("time", "nodes"):
            continue
        solve.conclude(outcome)
        if math.isinf(seconds) and (outcome.limit == "nodes" or outcome.limit == "time"):
            search.stop_for(outcome.limit)
        return


class _Solve(Generic[S]):
    """One solve of one program."""

    def __init__(
        self,
        program: IntegerProgram[S],
        search: Search[S],
        solver: str,
        options: Mapping[str, Any] | None,
    ) -> None:
        self.program, self.search, self.solver, self.options = program, search, solver, options
        self.name = "HiGHS" if solver == "highs" else solver
        self.origin = f"{program.origin} ({self.name})"
        self.stated_at = search.objective
        self.linear: Linear | None = None
        self.believed = False

    def tightened(self) -> bool:
        """Tighten the program; return whether anything is left to solve."""
        program, search = self.program, self.search
        if program.compiled.linear is None:
            search.prove_infeasible(f"{program.infeasible} ({program.compiled.why_infeasible})")
            return False
        with search.phase("tighten"):
            cutoff = search.objective / program.scale * (1 + BOUND_SLACK)
            self.linear = tighten(program.compiled.linear, cutoff)
        if self.linear is None:
            search.prove_infeasible(program.infeasible)
            return False
        entries = np.abs(self.linear.matrix.data)
        self.believed = bool(entries.max(initial=0.0) <= LARGEST)
        return True

    @property
    def worth_stating_anew(self) -> bool:
        """Return whether a much better solution is known than when the program was stated."""
        better = 0 < self.search.objective < MUCH_BETTER * self.stated_at
        return better and not self.program.fixed

    def run(self, seconds: float, gap: float | None) -> Outcome | None:
        """Run the solver and return its outcome; None if it failed."""
        search, linear = self.search, self.linear
        assert linear is not None
        start = self.program.start
        try:
            with search.phase("solve"):
                run = partial(
                    run_highs,
                    linear,
                    search,
                    on_incumbent=self._on_incumbent,
                    on_bound=self._on_bound,
                )
                if self.solver != "highs":
                    run = partial(run_other, self.solver, self.program.compiled, linear, search)
                outcome = run(start=start, gap=gap, seconds=seconds, options=self.options)
        except StagecutError as error:
            search.note(f"{self.name} failed, and proves nothing more: {error}")
            return None
        known = self.stated_at * (1 + OPTIMAL_GAP)
        if outcome.x is not None and outcome.objective * self.program.scale > known:
            search.note(f"{self.name} did not take the plan known before as its start")
        return outcome

    def conclude(self, outcome: Outcome) -> None:
        """Offer the solver's last solution, and check its last bound or claim of infeasibility."""
        if outcome.x is not None:
            self._offer(outcome.x)
        if outcome.status == "infeasible":
            self._claimed_infeasible()
        elif math.isfinite(outcome.bound):
            self._on_bound(outcome.bound)
            self._prove_again(outcome.bound)

    def _offer(self, x: Floats) -> None:
        if self.program.read is not None and not self.search.done:
            # solutions found while the solver stops would depend on the machine
            try:
                solution = self.program.read(x)
            except (IndexError, KeyError, ValueError):  # readers rely on the rows
                self.search.note(f"{self.name} gave a solution that keeps no rule; it is not used")
                return
            self.search.offer(solution)

    def _on_incumbent(self, x: Floats) -> bool:
        self._offer(x)
        return self.worth_stating_anew

    def _on_bound(self, bound: float) -> None:
        if self.believed and math.isfinite(bound):
            self.search.raise_bound(self._safe(bound) * self.program.scale, self.origin)

    def _safe(self, bound: float) -> float:
        """Return a bound, in the program's unit, lowered by the solver's tolerances.

        A bound above the incumbent by rounding alone says that no solution is better.
        """
        objective = self.search.objective / self.program.scale
        if objective < bound <= objective * (1 + OPTIMAL_GAP):
            bound = objective
        return bound - BOUND_SLACK * max(STATED_OBJECTIVE, abs(bound))

    def _claimed_infeasible(self) -> None:
        if self.search.best is not None:
            self.search.withdraw(self.origin, "that there is no solution")
        elif self._check(math.inf) is ProofOutcome.PROVED:
            self.search.prove_infeasible(self.program.infeasible)
        else:
            self.search.note(
                f"{self.name} finds no solution; that there is none is not proved beyond its "
                "tolerances"
            )

    def _prove_again(self, bound: float) -> None:
        """Check the solver's last bound in safe arithmetic, if it is the search's best."""
        search, scale = self.search, self.program.scale
        target = self._safe(bound)
        if target * scale < search.bound or not target > 0:
            return
        outcome = self._check(target)
        if outcome is ProofOutcome.PROVED:
            search.raise_bound(target * scale, f"{self.origin}, proved again")
        elif outcome is ProofOutcome.REFUTED:
            search.withdraw(self.origin)
            search.note(
                f"{self.name}'s bound {bound * scale:.6g} could not be proved again: a solution of "
                "the program is below it; it is not used"
            )
        elif not self.believed:
            search.note(
                f"the numbers of this workload span more than {self.name}'s tolerances carry: its "
                f"bound {bound * scale:.6g} is not used"
            )

    def _check(self, target: float) -> ProofOutcome:
        """Check, within limits of size and time, the claim that no solution is below `target`."""
        search, linear = self.search, self.linear
        assert linear is not None
        if len(linear.cost) > CHECK_COLUMNS:
            return ProofOutcome.UNDECIDED
        brief = self.believed and math.isfinite(target)
        seconds = CHECK_SECONDS + CHECK_PART * search.phases["solve"]
        clock = Clock(seconds if brief else UNBELIEVED_SECONDS)
        with search.phase("prove again"):
            try:
                return check(
                    linear,
                    target,
                    should_stop=lambda: clock.should_stop() or search.overdue() > 0,
                )
            except SolverError as error:
                search.note(f"nothing is proved again: {error}")
                return ProofOutcome.UNDECIDED
