"""Memory of nodes: resident bytes, and activation bytes of each microbatch in flight."""

from __future__ import annotations

import numpy as np

from ..common.arrays import Floats
from .workload import Workload


def kept_bytes(workload: Workload) -> tuple[Floats, Floats, Floats]:
    """Return each node's weights, resident bytes and activations, in bytes, shape (n,).

    Weights, in one version, are `extra["weight_bytes"]`, else all of a node's memory. Activations,
    of the forward pass of each microbatch in flight, are `extra["activation_bytes"]`, else the
    outputs where their bytes are known, else nothing. Resident are weights, gradients and optimizer
    state, that is, all of a node's memory but the activations of its one microbatch, if the
    workload tells them.
    """
    weights = workload.extra.get("weight_bytes", workload.memory_bytes)
    known = workload.extra.get("activation_bytes")
    activations = workload.output_bytes if known is None else known
    if activations is None:
        activations = np.zeros(workload.n)
    activations = np.where(workload.backward, 0.0, activations)
    resident = workload.memory_bytes
    if known is not None:
        resident = np.maximum(resident - activations, 0.0)
    return weights, resident, activations
