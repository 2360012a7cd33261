"""The searches: every method takes a task and a search, and fills the search with its finds."""

from .limits import Limits
from .registry import METHODS, solver
from .result import Result
from .search import Point, Progress, Search

__all__ = ["METHODS", "Limits", "Point", "Progress", "Result", "Search", "solver"]
