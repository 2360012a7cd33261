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
    """The actions of the devices, each device's in the order in which it does them.

    Parameters
    ----------
    first
        Shape (D + 1,): first action of each device.
    template, microbatch
        Shape (N,).
    duration
        Shape (T,).
    gate
        Shape (T,): where an action waits; −1 for nowhere.
    rendezvous
        Shape (T,): whether actions of all replicas begin together.
    """

    first: Ints
    template: Ints32
    microbatch: Ints32
    duration: Floats
    gate: Ints
    rendezvous: Ints


class Gates(NamedTuple):
    """Where actions and jobs wait for others, per microbatch.

    Parameters
    ----------
    waits
        Shape (G,): arrivals that a gate waits for.
    stage, job
        Shape (G,): whose devices a gate stops; the job that it starts, or −1.
    feed_at, feed_to
        CSR over templates, then jobs: gates that they open when they end.
    """

    waits: Ints
    stage: Ints
    job: Ints
    feed_at: Ints
    feed_to: Ints


class Replicas(NamedTuple):
    """The devices of each stage, as CSR; microbatch j is taken by the one at j modulo their number.

    Parameters
    ----------
    at
        Shape (P + 1,): where each stage's devices begin.
    to
        Their numbers.
    """

    at: Ints
    to: Ints


class Jobs(NamedTuple):
    """Transfers that run beside compute.

    Parameters
    ----------
    source, target
        Shape (X,): stages.
    task
        Shape (X,): the task that it belongs to, 2 · stage + pass.
    pair
        Shape (X,): 1 if the job takes the route between the two stages' devices, 0 if it takes
        the copy engine of the source's device.
    work
        Shape (X,): in units of the lane's rate.
    """

    source: Ints
    target: Ints
    task: Ints
    pair: Ints
    work: Floats


class Lanes(NamedTuple):
    """Copy engines or links, and the routes over them.

    Parameters
    ----------
    rate
        Shape (L,).
    latency
        Shape (routes,).
    route
        Shape (D, D): number of the route from a device to another, −1 for none.
    route_at, route_to
        CSR: lanes on each route.
    order_at, order_to
        CSR: jobs of each lane (job · microbatches + microbatch) in the order in which they must
        run; without any lane, they run as they come.
    """

    rate: Floats
    latency: Floats
    route: Ints
    route_at: Ints
    route_to: Ints
    order_at: Ints
    order_to: Ints
