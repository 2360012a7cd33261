"""Front of a training job over numbers of devices: seconds, tokens per second, price of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances import InputError
from ..instances.common.errors import quote
from ..instances.costs.clusters import training_cluster, usual_node
from ..instances.costs.description import ModelDescription
from ..instances.costs.hardware import TrainingCluster
from ..instances.costs.layout import Layout, describe
from ..instances.costs.models import model_description
from ..instances.job.problem import TrainingJob
from ..solvers import Limits
from .job import solve_job

if TYPE_CHECKING:
    import pandas as pd

#: Numbers of devices, where none are given: those of 1 to 64 nodes of eight.
GPUS = (8, 16, 32, 64, 128, 256, 512)
#: Limits of each of the searches, where none are given.
FRONT_LIMITS = Limits(seconds=20.0, gap=5e-3)


@dataclass(frozen=True)
class FrontPoint:
    """The best plan on a number of devices, with its bound, rate and price."""

    gpus: int
    layout: Layout | None  # None if there is no plan
    seconds: float  # of an iteration
    bound: float  # no plan takes fewer seconds
    tokens_per_s: float  # of all devices together
    price: float | None  # of a million tokens, in the currency that was given; None without one
    reason: str = ""  # why there is no plan


@dataclass(frozen=True)
class JobFront:
    """The best plans of a job by number of devices, in rising order.

    Examples
    --------
    >>> job = TrainingJob(global_batch=64, sequence=4096, pipeline=1, context=1)
    >>> found = front("llama3.2-1b", "h100", job, (4, 8), price=2.5)
    >>> found.fewest.gpus, found.fewest_for(1e9), found.points[1].price > found.points[0].price
    (4, None, True)
    """

    points: tuple[FrontPoint, ...]

    @property
    def fewest(self) -> FrontPoint | None:
        """The point of fewest devices that has a plan; None if none has one."""
        return next((one for one in self.points if one.layout is not None), None)

    def fewest_for(self, tokens_per_s: float) -> FrontPoint | None:
        """Return the point of fewest devices that reach a rate together; None if none do."""
        return next((one for one in self.points if one.tokens_per_s >= tokens_per_s), None)

    @property
    def cheapest(self) -> FrontPoint | None:
        """The point of the least price of a token; None without prices."""
        priced = [one for one in self.points if one.price is not None]
        return min(priced, key=lambda one: one.price or 0.0, default=None)

    @property
    def undominated(self) -> tuple[FrontPoint, ...]:
        """Points with a plan that are faster than all points of fewer devices."""
        found: list[FrontPoint] = []
        for one in self.points:
            if one.layout is not None and (not found or one.seconds < found[-1].seconds):
                found.append(one)
        return tuple(found)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per number of devices; `objective` and `bound` in seconds."""
        import pandas as pd

        efficient = {one.gpus for one in self.undominated}
        rows = [
            {
                "devices": one.gpus,
                "objective": one.seconds,
                "bound": one.bound,
                "tokens_per_s": one.tokens_per_s,
                "price": one.price,
                "efficient": one.gpus in efficient,
                "layout": "" if one.layout is None else describe(one.layout),
                "reason": one.reason,
            }
            for one in self.points
        ]
        return pd.DataFrame(rows)


def leaves_number_open(cluster: str) -> bool:
    """Whether a cluster's line names one kind of devices without their number.

    Examples
    --------
    >>> [leaves_number_open(one) for one in ("h100,network=25GB/s", "h100:8x2", "mine.json")]
    [True, False, False]
    """
    kinds = cluster.partition(",")[0]
    return ":" not in kinds and "+" not in kinds and not kinds.endswith(".json")


def front(
    model: str | Path | ModelDescription,
    kind: str,
    job: TrainingJob,
    gpus: Sequence[int] = GPUS,
    *,
    price: float | None = None,
    limits: Limits | None = None,
) -> JobFront:
    """Plan a job on several numbers of devices of one kind.

    Parameters
    ----------
    model
        As of `solve_job`.
    kind
        Kind of devices, with the number per node if it is not the usual one, and the network's
        options: ``h100``, ``a100:4``, ``h100:8,network=25GB/s``.
    job
        The job; its batch is that of all devices together.
    gpus
        Numbers of devices.
    price
        Price of a device for an hour.
    limits
        Limits of each search; default: `FRONT_LIMITS`.

    Raises
    ------
    InputError
        If model or devices are not known, a number or the price is below 1 or 0, or no number has a
        layout that keeps what the job gives.
    """
    if not gpus or min(gpus) < 1:
        raise InputError(f"gpus: {', '.join(map(str, gpus))}; give numbers of at least 1")
    if price is not None and not 0 <= price < float("inf"):
        raise InputError(f"price: {price:g} per device and hour; it must be 0 or above")
    if not isinstance(model, ModelDescription):
        model = model_description(model)
    points, refused = [], []
    for number in sorted(set(gpus)):
        try:
            cluster = training_cluster(_cluster(kind, number))
            points.append(_point(model, cluster, job, price, limits))
        except InputError as error:  # of this number: others may fill nodes and divide the batch
            refused.append(error)
            points.append(_nothing(number, str(error)))
    if len(refused) == len(points):
        raise refused[0]
    return JobFront(tuple(points))


def _cluster(kind: str, devices: int) -> str:
    """Return a number of devices of a kind in the notation of `training_cluster`."""
    name, comma, options = kind.partition(",")
    device, colon, per_node = name.partition(":")
    given = not colon or (per_node.isdecimal() and int(per_node) > 0)
    if not given or "+" in name or name.endswith(".json"):
        raise InputError(
            f"cluster {quote(kind)}: write one NAME or NAME:PER_NODE; gpus are the devices"
        )
    each = int(per_node) if colon else usual_node(device)
    if devices > each and devices % each:
        smaller = math.gcd(devices, each)
        raise InputError(
            f"gpus: {devices} are no whole number of nodes of {each}; leave it out, or write "
            f"{device}:{smaller} for nodes of {smaller}"
        )
    nodes = max(1, devices // each)
    return f"{device}:{min(devices, each)}x{nodes}{comma}{options}"


def _point(
    model: ModelDescription,
    cluster: TrainingCluster,
    job: TrainingJob,
    price: float | None,
    limits: Limits | None,
) -> FrontPoint:
    """Return the best plan on one cluster."""
    found = solve_job(model, cluster, job, limits=limits or FRONT_LIMITS)
    gpus = cluster.devices
    if found.plan is None:
        return _nothing(gpus, found.reason)
    plan = found.plan
    rate = plan.tokens_per_s * gpus
    cost = None if price is None else price * gpus / 3600 / rate * 1e6
    return FrontPoint(gpus, plan.layout, plan.seconds, plan.bound, rate, cost)


def _nothing(gpus: int, reason: str) -> FrontPoint:
    return FrontPoint(gpus, None, float("inf"), float("inf"), 0.0, None, reason)
