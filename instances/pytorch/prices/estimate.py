"""Times of operators by the roofline of a named machine, kernel by kernel."""

from __future__ import annotations

import numpy as np

from ...common.arrays import Floats
from ...generate.roofline import Machine
from ..operators.graph import TracedOperator


def estimated_ms(operators: tuple[TracedOperator, ...], machine: Machine) -> Floats:
    """Return the time of each operator: the sum of its kernels' rooflines, launches included."""
    kernels = [(v, k) for v, op in enumerate(operators) for k in op.kernels]
    seconds = machine.seconds(
        np.array([k.flops for _, k in kernels]),
        np.array([k.moved_bytes for _, k in kernels]),
        np.ones(len(kernels)),
    )
    where = np.array([v for v, _ in kernels], np.int64)
    total = np.bincount(where, weights=1e3 * seconds, minlength=len(operators))
    return np.asarray(total, np.float64)
