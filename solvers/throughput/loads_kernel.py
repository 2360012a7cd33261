"""What a local search compares: the objective of loads, then how uneven they are."""

from __future__ import annotations

from ...instances.common.kernel import inner


@inner
def value_of_loads(work, moved, gpipe, overlap):
    """Return the objective and the sum of squared loads.

    Parameters
    ----------
    work, moved
        Shape (D, 2): computing and transfer times of each device, forward and backward.
    gpipe, overlap
        As the problem says.
    """
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
