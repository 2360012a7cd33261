"""The certificate of a bound by prices, as plans keep it: see `runtime.verify.bound`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from ..common.errors import InputError, quote
from ..common.units import LARGEST
from .source import Record, explain

#: What such a certificate calls itself; all others are a solver's word.
PRICES = "set partitioning"


class PriceCertificate(Record):
    """Prices that show that no plan is below the target; K kinds of devices, n nodes.

    Parameters
    ----------
    target
        The max-load that no plan can have.
    prices
        n: of each node, in the workload's order.
    memory_prices, transfer_prices
        K: per byte, and per unit of time.
    order
        Numbers of nodes, in an order that makes the check fast.
    """

    origin: Literal["set partitioning"]
    target: float
    prices: list[float]
    memory_prices: list[float]
    transfer_prices: list[float]
    order: list[int]


def price_certificate(values: Mapping[str, object], nodes: int, kinds: int) -> PriceCertificate:
    """Return a certificate by prices for so many nodes and kinds of devices.

    Raises
    ------
    InputError
        If a field is missing, of another type or length, or holds no number up to `LARGEST`.
    """
    try:
        found = msgspec.convert(dict(values), PriceCertificate)
    except msgspec.ValidationError as error:
        reason = explain(str(error), dict(values), PriceCertificate)
        raise InputError(f"certificate: {reason}") from None
    sizes = {"prices": nodes, "memory_prices": kinds, "transfer_prices": kinds}
    for key, size in sizes.items():
        if len(getattr(found, key)) != size:
            raise InputError(
                f"certificate: {key} has {len(getattr(found, key))} values; it must have {size}"
            )
    for key in ("target", *sizes):
        value = getattr(found, key)
        for x in value if isinstance(value, list) else [value]:
            if not abs(x) <= LARGEST:  # not a number, too
                raise InputError(
                    f"certificate: {key} holds {quote(x)}; it must be a number up to {LARGEST:g}"
                )
    if found.target < 0 or math.copysign(1, found.target) < 0:
        raise InputError(f"certificate: target is {quote(found.target)}; no load is below 0")
    for v in found.order:
        if not 0 <= v < nodes:
            raise InputError(
                f"certificate: order holds {quote(v)}, which is no node from 0 to {nodes - 1}"
            )
    return found
