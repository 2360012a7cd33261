"""A part of the time that a search has left."""

from __future__ import annotations

import time

from .search import Stoppable


class Share(Stoppable):
    """Tells a part of a search to stop when it has had its share, or the search must stop.

    Parameters
    ----------
    whole
        The search, or a share of it.
    part
        Of the time left now; without deadline there is no end to it.
    """

    def __init__(self, whole: Stoppable, part: float = 1.0) -> None:
        self._whole = whole
        self._ends = time.monotonic() + part * whole.seconds_left

    def should_stop(self) -> bool:
        """Whether to stop soon."""
        return self._whole.should_stop() or self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        """Seconds until the share is used up; `inf` without a deadline."""
        return max(0.0, min(self._whole.seconds_left, self._ends - time.monotonic()))
