"""Methods of a problem: their solvers, options, and the strategies that run beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic

from ...formulations.task import P, Task
from ...instances import InputError, Solution
from .search import Search

#: A solver reads the task, offers solutions to the search, raises its bound, and stops when asked.
Solver = Callable[[Task[P], Search[Solution]], None]

#: Returns why a method of this name does not support a task; None if it does.
Refusal = Callable[[str, Task[P]], str | None]

#: Options of a `Method` that takes the name of an integer-programming solver.
READS_SOLVER: dict[str, tuple[str, ...]] = {"solver": ()}


@dataclass(frozen=True)
class SolverName:
    """A solver by the name of its module and function; the module is imported when it runs."""

    name: str  # dotted, as in ``stagecut.solvers.mapping.auto.auto``
    # arguments of the function before task and search, such as the name of a rule
    given: tuple[str, ...] = ()

    def __call__(self, task: Task[Any], search: Search[Solution]) -> None:
        """Run the solver."""
        module, _, function = self.name.rpartition(".")
        getattr(import_module(module), function)(*self.given, task, search)


@dataclass(frozen=True)
class Strategy:
    """A search that runs beside a method, in a process of its own."""

    name: str  # name in notes
    solve: Solver[Any]  # a function of a module, by whose name the other process finds it
    # whether it is another search with another seed, so that several workers can run it
    seeded: bool = False
    # whether it starts only once the method has restricted the search, as to mappings of the
    # stages that it chose; otherwise solutions and bounds would be of different problems
    restricted: bool = False


def _alone(task: Task[P]) -> Sequence[Strategy]:  # noqa: ARG001
    return ()


@dataclass(frozen=True)
class Method(Generic[P]):
    """A method of one problem."""

    # its solver, as a rule a `SolverName`, whose module is imported when it first runs
    solve: Solver[P]
    # the options that users may append to its name after a colon, the most usual first, and the
    # values that each may have; () for any text
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refuses: tuple[Refusal[P], ...] = ()  # tests for tasks that it does not support
    # the strategies that can run beside it in other processes; those that end soon come first
    strategies: Callable[[Task[P]], Sequence[Strategy]] = _alone

    def check(self, name: str, task: Task[P]) -> None:
        """Raise InputError if the method does not support the task."""
        for refusal in self.refuses:
            reason = refusal(name, task)
            if reason is not None:
                raise InputError(reason)
