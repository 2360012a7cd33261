"""What a local search compares: the objective of loads, then how uneven they are."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)  # type: ignore[untyped-decorator]
def value_of_loads(
    work: NDArray[np.float64], moved: NDArray[np.float64], gpipe: bool, overlap: bool
) -> tuple[float, float]:
    """Objective and sum of squared loads."""
    forward, backward, total, squares = 0.0, 0.0, 0.0, 0.0
    for d in range(len(work)):
        if overlap:
            fw, bw = max(work[d, 0], moved[d, 0]), max(work[d, 1], moved[d, 1])
            load = max(work[d, 0] + work[d, 1], moved[d, 0] + moved[d, 1])
        else:
            fw, bw = work[d, 0] + moved[d, 0], work[d, 1] + moved[d, 1]
            load = fw + bw
        forward, backward = max(forward, fw), max(backward, bw)
        total = max(total, load)
        squares += load * load
    return (forward + backward if gpipe else total), squares
