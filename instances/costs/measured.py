"""Your own measured links and matrix products, in place of a calibration's.

``stagecut measure --products --json`` prints what is read here: links between pairs of ranks, by
host, and the rate that large matrix products reach in each precision. What was not measured stays
as the calibration has it: pairs within one host say nothing of the network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..common.errors import InputError, quote
from ..model.network.links import Link
from .calibration import Calibration
from .hardware import Accelerator, NumberFormat, TrainingCluster


@dataclass(frozen=True)
class Measurements:
    """What `measure` has found: links as of the median pair, products as of the largest."""

    # peer, network: between ranks of one host, and of different hosts; None: no such pair was
    # measured
    peer: Link | None
    network: Link | None
    # operations per second that large matrix products reach, by precision
    products: tuple[tuple[NumberFormat, float], ...]


def load_measurements(path: Path) -> Measurements:
    """Return what a file with the output of ``stagecut measure --json`` says.

    InputError if it cannot be read, or is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        raise InputError(f"{path}: {reason}; give what stagecut measure --json prints") from None
    try:
        hosts = [str(rank["host"]) for rank in content["ranks"]]
        inside: list[Link] = []
        across: list[Link] = []
        for pair in content["pairs"]:
            first, second = pair["ranks"]
            link = Link(float(pair["latency_s"]), float(pair["bytes_per_s"]))
            (inside if hosts[first] == hosts[second] else across).append(link)
        products = [(str(key), float(rate)) for key, rate in content.get("products", {}).items()]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise InputError(
            f"{path}: it has no ranks and pairs as stagecut measure --json prints them"
        ) from None
    wrong = next((rate for _, rate in products if not 0 < rate < 1e30), None)
    if wrong is not None:
        raise InputError(f"{path}: products: {quote(wrong)}; it must be a number above 0")
    return Measurements(
        _typical(inside),
        _typical(across),
        tuple((NumberFormat.of(f"{path}: products", key), rate) for key, rate in products),
    )


def _typical(links: Sequence[Link]) -> Link | None:
    if not links:
        return None
    return Link(
        median(link.latency_s for link in links), median(link.bytes_per_s for link in links)
    )


def with_measurements(
    table: Calibration, measured: Measurements, cluster: TrainingCluster
) -> Calibration:
    """Return a calibration by which links and products take what was measured of them.

    Its parts are parts of the cluster's sheet, and the table's for everything else.
    """
    links: dict[str, Any] = {}
    if measured.peer is not None:
        links["peer"] = measured.peer.bytes_per_s / cluster.accelerator.peer_bandwidth
        links["peer_latency"] = measured.peer.latency_s
    if measured.network is not None:
        links["network"] = measured.network.bytes_per_s / cluster.network.bandwidth
        links["network_latency"] = measured.network.latency_s
    return replace(
        table,
        name=f"{table.name}, measured",
        links=replace(table.links, **links),
        kernels=replace(table.kernels, **_reached(measured, cluster.accelerator)),
    )


#: Parts of the peak in `Efficiency`, and the precisions that say them, the surest first.
_PARTS = (
    ("product", (NumberFormat.BF16, NumberFormat.FP16, NumberFormat.TF32, NumberFormat.FP32)),
    ("product8", (NumberFormat.FP8, NumberFormat.FP8_BLOCK, NumberFormat.MXFP8)),
    ("product4", (NumberFormat.NVFP4,)),
)


def _reached(measured: Measurements, device: Accelerator) -> dict[str, float]:
    """Return the parts of the peak that products reached."""
    rates = dict(measured.products)
    found = {}
    for part, precisions in _PARTS:
        known = [one for one in precisions if one in rates and one in device.peak]
        if known:
            found[part] = rates[known[0]] / device.peak[known[0]]
    return found
