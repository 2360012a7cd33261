"""Certificates of bounds, as plans keep them: by prices, by hubs, and of shardings.

For what they prove see `prices`, `max_load` and `sharding` in `runtime.verify.bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from ..common.errors import InputError, quote
from ..common.units import LARGEST
from .source import Record, converted

#: Origins of the certificates that can be checked; any other is a search's own claim.
PRICES: Final = "set partitioning"
HUBS: Final = "prices by hubs"
PASSED: Final = "message passing over a program"
ELIMINATED: Final = "elimination of a program"
PRICED: Final = "priced memory"
FITTING: Final = "elimination of what fits"
CHECKED = (PRICES, HUBS, PASSED, ELIMINATED, PRICED, FITTING)

#: Hubs of a certificate at most: each makes three cases of one.
MOST_HUBS = 6


Number = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]


class PriceCertificate(Record):
    """Prices that show that no plan is below the target; K kinds of devices, n nodes."""

    origin: Literal["set partitioning"]
    target: NotNegative  # the max-load that no plan can have
    prices: list[Number]  # n: of each node, in the workload's order
    # memory_prices, transfer_prices: K: per byte, and per unit of time
    memory_prices: list[NotNegative]
    transfer_prices: list[NotNegative]
    order: list[int]  # numbers of nodes, in an order that makes the check fast
    # of a price of 1, of which each price is a whole number; 0 where there are none
    parts: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0


class HubCertificate(Record):
    """Prices of nodes by class, and hubs: nodes that a device has or has not; n nodes."""

    origin: Literal["prices by hubs"]
    target: NotNegative  # the max-load that no plan can have
    kind: int  # number of the kind of devices whose transfers count
    hubs: list[int]  # numbers of nodes
    classes: list[int]  # n: number of the class of each node
    # prices of each class, for each unit of time that a node takes on that kind, and a slope of
    # each case: what a unit of load is worth. Cases are in lexicographic order of what a device has
    # of each hub: itself; not itself, nor what comes after it; not itself, nor what comes before
    # it. The last two are one for a hub with nothing on one side, and where a split need not be
    # contiguous.
    points: list[tuple[list[Number], list[NotNegative]]]


class ShardingCertificate(Record, forbid_unknown_fields=False):
    """Certificate of a bound of a sharding; older files have potentials, too."""

    origin: Literal[
        "message passing over a program",
        "elimination of a program",
        "priced memory",
        "elimination of what fits",
    ]
    target: NotNegative  # what no sharding costs less than
    price: NotNegative = 0.0  # of a byte that a device holds
    # where gradients overlap: weights of the ends of a step, of sum 1, that of computing last
    mixture: list[NotNegative] = msgspec.field(default_factory=list)


Kind = TypeVar("Kind", PriceCertificate, HubCertificate, ShardingCertificate)


def read_certificate(
    values: Mapping[str, object], nodes: int, kinds: int
) -> PriceCertificate | HubCertificate | ShardingCertificate | None:
    """Return a plan's certificate for so much of each; None if it is no more than a word.

    Errors as of `price_certificate`.
    """
    origin = values.get("origin")
    if origin == PRICES:
        return price_certificate(values, nodes, kinds)
    if origin == HUBS:
        return hub_certificate(values, nodes, kinds)
    return sharding_certificate(values) if origin in CHECKED else None


def price_certificate(values: Mapping[str, object], nodes: int, kinds: int) -> PriceCertificate:
    """Return a certificate by prices for so many nodes and kinds of devices.

    InputError if a field is missing, of another type or length, or holds no number up to `LARGEST`.
    """
    found = _read(values, PriceCertificate)
    _check_sizes(found, {"prices": nodes, "memory_prices": kinds, "transfer_prices": kinds})
    _check_range("order", found.order, nodes, "node")
    return found


def hub_certificate(values: Mapping[str, object], nodes: int, kinds: int) -> HubCertificate:
    """Return a certificate by hubs for so many nodes and kinds.

    Errors as of `price_certificate`.
    """
    found = _read(values, HubCertificate)
    _check_range("kind", [found.kind], kinds, "kind")
    _check_range("hubs", found.hubs, nodes, "node")
    if not 1 <= len(found.hubs) <= MOST_HUBS:
        raise InputError(
            f"certificate: hubs has {len(found.hubs)} values; it must have 1 to {MOST_HUBS}"
        )
    _check_sizes(found, {"classes": nodes})
    if not found.points:
        raise InputError("certificate: points is empty; it must have prices and slopes")
    for rates, _ in found.points:
        _check_range("classes", found.classes, len(rates), "class")
    return found


def sharding_certificate(values: Mapping[str, object]) -> ShardingCertificate:
    """Return the certificate of a sharding; errors as of `price_certificate`."""
    return _read(values, ShardingCertificate)


def _read(values: Mapping[str, object], kind: type[Kind]) -> Kind:
    found = converted(dict(values), kind, "certificate: ")
    if math.copysign(1, found.target) < 0:
        raise InputError("certificate: target is −0; no load is below 0")
    return found


def _check_sizes(found: object, sizes: Mapping[str, int]) -> None:
    for key, size in sizes.items():
        if len(getattr(found, key)) != size:
            raise InputError(
                f"certificate: {key} has {len(getattr(found, key))} values; it must have {size}"
            )


def _check_range(key: str, values: list[int], end: int, what: str) -> None:
    for v in values:
        if not 0 <= v < end:
            raise InputError(
                f"certificate: {key} holds {quote(v)}, which is no {what} from 0 to {end - 1}"
            )
