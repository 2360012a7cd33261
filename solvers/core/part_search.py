"""A search for another problem, in a share of the time of the one that it is part of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .limits import Limits
from .search import S, Search
from .share import Share


class PartSearch(Search[S]):
    """A search that stops with the share of time that it has, or the search it is part of.

    Parameters
    ----------
    share
        Of the other search's time.
    judge
        As of `Search`.
    """

    def __init__(self, share: Share, judge: Callable[[S], float]) -> None:
        left = share.seconds_left
        super().__init__(Limits(seconds=None if np.isinf(left) else max(left, 1e-3)), judge)
        self._share = share

    def should_stop(self) -> bool:
        """Whether to stop soon, as the whole search must too."""
        return self._share.should_stop() or super().should_stop()
