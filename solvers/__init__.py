"""The searches: every method takes a task and a search, and fills the search with its finds."""

from .first_bounds import raise_first_bounds
from .limits import Limits
from .registry import METHODS, Solver, solver
from .result import Result
from .search import Point, Progress, Search

__all__ = [
    "METHODS",
    "Limits",
    "Point",
    "Progress",
    "Result",
    "Search",
    "Solver",
    "raise_first_bounds",
    "solver",
]
