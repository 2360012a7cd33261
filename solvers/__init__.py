"""The searches: every method takes a task and a search, and fills the search with its finds."""

from .core.first_bounds import raise_first_bounds
from .core.limits import DEFAULT_LIMITS, Limits
from .core.registry import METHODS, Solver, current_name, solver
from .core.result import Result
from .core.search import Point, Progress, Search

__all__ = [
    "DEFAULT_LIMITS",
    "METHODS",
    "Limits",
    "Point",
    "Progress",
    "Result",
    "Search",
    "Solver",
    "current_name",
    "raise_first_bounds",
    "solver",
]
