"""The choices of each device of a chain, as a graph with a layer for each device.

Device d of D holds the stages d, D + d, 2D + d, … of P = vD. A state before device d is what the
devices before it hold; an *option* of device d leads from a state to a state of the next layer, and
says how long the actions of its stages take. A path from the first state to the last is a chain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Floats, Ints


class OptionGraph(NamedTuple):
    """T options of D devices.

    Parameters
    ----------
    begin
        Shape (D + 1,): where the options of each device begin.
    layer
        Shape (T,): the device.
    source, sink
        Shape (T,): number of the state before and behind, each numbered in its layer from 0; the
        first and the last layer have state 0 alone.
    duration
        Shape (T, v, A): of the actions of each stage; A is 2 where backward passes are whole.
    cuts
        Shape (T, v): the ideal at which each stage ends.
    """

    begin: Ints
    layer: NDArray[np.int32]
    source: NDArray[np.int32]
    sink: NDArray[np.int32]
    duration: Floats
    cuts: Ints
