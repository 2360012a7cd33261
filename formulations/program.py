"""Interface and helpers of the integer programs in Pyomo.

All have one form: a `…_data` record holds the data; small functions add variables, constraints and
the objective to a model; a rule is a named function whose docstring is its numbered equation, and
its constraint has its name. Each program is a record of the protocol `Program`: `read` returns a
solution from values of the variables, and `start` is its inverse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyomo.environ as pyo

#: Returns the value of a variable in a solution.
Value = Callable[["pyo.Var"], float]
#: Pairs of a variable and the value to start it from.
Start = list[tuple["pyo.Var", float]]


class Program(Protocol):
    """An integer program, with translations between its variables and solutions."""

    @property
    def model(self) -> pyo.ConcreteModel:
        """The Pyomo model; its objective times `scale` is that of the problem."""

    @property
    def scale(self) -> float:
        """Units of the problem's objective per unit of the model's."""

    def read(self, value: Value, /) -> Any:
        """Return the solution, given the value of each variable."""

    def start(self, solution: Any, /) -> Start | None:
        """Return the values of the integer variables for a solution; None if it has none."""


def at(m: pyo.ConcreteModel, v: int, d: int) -> pyo.Var | float:
    """Return x_{v,d} of a model: a variable, or 0 if there is none."""
    # Pyomo's components have no `get`
    return m.x[v, d] if (v, d) in m.x else 0.0  # noqa: SIM401


@contextmanager
def quiet_pyomo() -> Iterator[None]:
    """Silence Pyomo's log, which reports every limit reached and every exception passed on."""
    log = logging.getLogger("pyomo")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
