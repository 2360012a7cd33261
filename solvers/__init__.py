"""The searches: every method takes a task and a search, and fills the search with its finds."""

from .core.limits import DEFAULT_LIMITS, Limits, Workers
from .core.method import Method, Solver
from .core.result import Result
from .core.search import Point, Progress, Search
from .registry import METHODS, method_of, split_argument, supported_method

__all__ = [
    "DEFAULT_LIMITS",
    "METHODS",
    "Limits",
    "Method",
    "Point",
    "Progress",
    "Result",
    "Search",
    "Solver",
    "Workers",
    "method_of",
    "split_argument",
    "supported_method",
]
