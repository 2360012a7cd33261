"""What the event engine runs, as named tuples of arrays, which kernels take.

D devices, P stages, N actions of T templates (kind · P + stage), G gates, X jobs per microbatch,
L lanes (copy engines, or links).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.common.arrays import Floats, Ints

Ints32 = NDArray[np.int32]


class Actions(NamedTuple):
    """The actions of the devices, each device's in the order in which it does them."""

    first: Ints  # (D + 1,): first action of each device
    template: Ints32  # template, microbatch: (N,)
    microbatch: Ints32
    duration: Floats  # (T,)
    gate: Ints  # (T,): where an action waits; −1 for nowhere
    rendezvous: Ints  # (T,): whether actions of all replicas begin together


class Gates(NamedTuple):
    """Where actions and jobs wait for others, per microbatch."""

    waits: Ints  # (G,): arrivals that a gate waits for
    stage: Ints  # stage, job: (G,): whose devices a gate stops; the job that it starts, or −1
    job: Ints
    # feed_at, feed_to: CSR over templates, then jobs: gates that they open when they end
    feed_at: Ints
    feed_to: Ints


class Replicas(NamedTuple):
    """The devices of each stage, as CSR; they take microbatch j in turn."""

    at: Ints  # (P + 1,): where each stage's devices begin
    to: Ints  # their numbers


class Jobs(NamedTuple):
    """Transfers that run beside compute."""

    source: Ints  # source, target: (X,): stages
    target: Ints
    task: Ints  # (X,): the task that it belongs to, 2 · stage + pass
    # (X,): 1 if the job takes the route between the two stages' devices, 0 if it takes the copy
    # engine of the source's device
    pair: Ints
    work: Floats  # (X,): in units of the lane's rate


class Lanes(NamedTuple):
    """Copy engines or links, and the routes over them."""

    rate: Floats  # (L,)
    latency: Floats  # (routes,)
    route: Ints  # (D, D): number of the route from a device to another, −1 for none
    route_at: Ints  # route_at, route_to: CSR: lanes on each route
    route_to: Ints
    # order_at, order_to: CSR: jobs of each lane (job · microbatches + microbatch) in the order in
    # which they must run; without any lane, they run as they come
    order_at: Ints
    order_to: Ints
