"""Calibrations: efficiencies of kernels and links, a table per kind of device and software family.

The tables are in ``calibrations.json``, each with the runs on which it was fitted;
``benchmarks/fit_calibration.py`` makes them. Without a table for a combination, the nearest one is
used (the same device with other software, else similar software on another device), and its name
says so. Measurements of ``stagecut measure --products --json`` can replace the efficiencies of
links and of large matrix products.

A matrix product of m × n × k is computed in tiles of its output, which the device's U units take in
waves. With peak P, bandwidth W and the calibrated fraction η of the peak that large products reach,

    time = max( ⌈tiles/U⌉ · tile · (k + k₀) · 2U / (η e P) , bytes / W ) + launch              (1)

where e is the efficiency of a tile's shape (small tiles read operands more often), and k₀ is the
cost of filling and draining a tile, in steps of k. Like the libraries, `product` takes the fastest
tile. Matrix units load operands 16 bytes at a time: if a row is not a multiple of that (NVIDIA,
"Matrix multiplication background user's guide"), k is padded to the next multiple, and the smaller
loads reach less of the peak (`PEAK_BY_LOAD`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from ..common.choices import OrText
from ..common.errors import InputError, quote
from ..formats.source import read_source
from ..model.cluster import Link
from .collectives import LinkEfficiency
from .hardware import Accelerator, NumberFormat, TrainingCluster
from .layout import Software

#: Tiles of libraries and their efficiency: the larger, the fewer bytes per operation.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.82), (64, 64, 0.65))
#: Bytes of one element of a product's operands.
ELEMENT = {
    NumberFormat.FP32: 4.0,
    NumberFormat.TF32: 4.0,
    NumberFormat.FP16: 2.0,
    NumberFormat.BF16: 2.0,
    NumberFormat.FP8: 1.0,
    NumberFormat.FP8_BLOCK: 1.0,
    NumberFormat.MXFP8: 1.0,
    NumberFormat.NVFP4: 0.5,
}


#: Fraction of the peak that products reach, by the largest load (in bytes) that divides their rows.
PEAK_BY_LOAD = {16: 1.0, 8: 0.67, 4: 0.5, 2: 0.36}
#: Further factor on Hopper: its own matrix instructions need operands that its copy engine loads,
#: 16 bytes at a time; other rows use Ampere's instructions (`benchmarks/results/gpu_kernels.csv`).
UNALIGNED_FACTOR = {"h100": 0.45}


@dataclass(frozen=True)
class Efficiency:
    """Efficiency of one software family's kernels on one kind of device."""

    product: float = 0.80  # fraction of the peak that large, aligned matrix products reach
    # product8, product4: the same for products of 8-bit and of 4-bit numbers, each of its own peak
    product8: float = 0.70
    product4: float = 0.60
    depth: float = 128.0  # length in k that filling and draining a tile costs
    memory: float = 0.80  # fraction of the memory bandwidth that pointwise kernels reach
    # attention, attention_backward: fraction of the peak that fused attention reaches in each pass
    attention: float = 0.60
    attention_backward: float = 0.45
    launch: float = 4e-6  # seconds between two kernels of the same stream


@lru_cache(maxsize=1 << 16)
def product(
    m: float,
    n: float,
    k: float,
    count: float,
    device: Accelerator,
    precision: NumberFormat,
    reach: Efficiency,
    turned: bool = False,
) -> float:
    """Return the seconds of `count` products of m × k by k × n in one kernel.

    `turned`: both operands are stored by columns, as in gradients of weights, where k is the number
    of tokens.
    """
    if m <= 0 or n <= 0 or k <= 0 or count <= 0:
        return 0.0
    element = ELEMENT[precision]
    rows_of = (m, n) if turned else (n, k)
    load = min(map(_load, rows_of, (element, element)))
    peak = device.peak[precision] * PEAK_BY_LOAD[load]
    if load < 16:
        peak *= UNALIGNED_FACTOR.get(device.family, 1.0)
    if not turned:
        k = math.ceil(k * element / 16) * 16 / element
    reached = reach.product
    if element <= 1:
        reached = reach.product8 if element == 1 else reach.product4
    per_unit = reached * peak / device.units
    best = math.inf
    for rows, columns, efficiency in TILES:
        tiles = math.ceil(m / rows) * math.ceil(n / columns) * count
        waves = math.ceil(tiles / device.units)
        best = min(best, waves * rows * columns * 2 * (k + reach.depth) / (per_unit * efficiency))
    moved = count * (element * (m * k + k * n) + max(element, 2.0) * m * n)
    return max(best, moved / (device.bandwidth * reach.memory)) + reach.launch


def _load(width: float, element: float) -> int:
    """Return the bytes of one load (16, 8, 4 or 2) for rows of `width` elements.

    8- and 4-bit rows are padded to the alignment of 16 bits.
    """
    row = width * max(element, 2.0)
    return next(size for size in PEAK_BY_LOAD if row % size == 0 or size == 2)


def pointwise(moved: float, kernels: float, device: Accelerator, reach: Efficiency) -> float:
    """Return the seconds of `kernels` memory-bound kernels that move `moved` bytes in all."""
    return moved / (device.bandwidth * reach.memory) + kernels * reach.launch


def fused_attention(
    operations: float,
    backward: bool,
    device: Accelerator,
    precision: NumberFormat,
    reach: Efficiency,
) -> float:
    """Return the seconds of one pass of fused attention; `operations` are floating-point."""
    part = reach.attention_backward if backward else reach.attention
    return operations / (device.peak[precision] * part) + (3 if backward else 1) * reach.launch


_KERNELS, _LINKS = Efficiency(), LinkEfficiency()


@dataclass(frozen=True)
class Calibration:
    """Efficiencies and host times of one software family on one kind of device."""

    name: str = "default"  # device family and software family, such as ``a100/megatron``
    kernels: Efficiency = _KERNELS  # efficiency of kernels
    links: LinkEfficiency = _LINKS  # efficiency of collectives
    # time of a pass over the sum of the times of its kernels, each measured alone: a pass has gaps
    # between kernels, and copies beside them
    passes: float = 1.0
    host: float = 1e-5  # seconds that the host needs to issue one kernel
    # seconds that a sharded optimizer adds to each layer's backward pass in a pipeline: DeepSpeed
    # handles each gradient on the host as it arrives, in every microbatch
    hooks: float = 0.0
    # seconds of an iteration outside layers and optimizer: loss, clipping, logging
    step: float = 0.0
    # exponent q with which `pass_time` combines the times of device and host; the larger, the
    # closer the result is to their maximum
    sharpness: float = 4.0
    # further host seconds, in each pass, of a linear layer that tensor-parallel ranks divide:
    # PyTorch's DTensor derives the sharding of the result at every operation
    divided: float = 0.0
    # checkpointed, selective: further host seconds of a module whose activations are recomputed,
    # and factor on the host time of a recomputed kernel if a policy is asked for every operation
    checkpointed: float = 0.0
    selective: float = 1.0
    optimizer: float = 0.774  # fraction of the memory bandwidth that the optimizer step reaches
    hidden: float = 0.9  # fraction of overlapped communication that computation really hides
    # seconds by which a second of concurrent data-parallel collectives delays computation: their
    # kernels take units and memory bandwidth from it. 0.25 is the least-squares fit over the runs
    # of dense models with sharded weights on which the tables are fitted
    slowed: float = 0.25
    # fraction of tensor-parallel collectives that the products that they feed hide, in chunks
    tensor_hidden: float = 0.6
    # seconds of each rank's broadcast, in software whose ranks broadcast their updated weights in
    # turn (InternEvo); 0: the software uses an all-gather
    broadcast: float = 0.0
    fitted: str = ""  # runs on which the table was fitted, in words
    rows: tuple[str, ...] = ()  # these runs by source and number

    def pass_time(self, device: float, host: float) -> float:
        """Return the seconds of a pass, (d^q + h^q)^(1/q) of those of the device and of the host.

        That is nearly the maximum if the two differ much, and more if they are close, since the
        host then takes longer to issue some kernels than the device to run them, and less for
        others.
        """
        if host <= 0 or device <= 0:
            return max(device, host, 0.0)
        longer, q = max(device, host), self.sharpness
        return float(longer * (1 + (min(device, host) / longer) ** q) ** (1 / q))


#: Device families whose tables replace a missing one, in this order.
_NEAREST = ("h100", "a100", "b200", "v100")
#: Software whose tables replace a missing one: of each, software with the same kinds of kernels.
_ALIKE = {
    Software.TORCHTITAN: (Software.FSDP,),
    Software.FSDP: (Software.TORCHTITAN,),
    Software.STAGECUT: (Software.TORCHTITAN, Software.FSDP),
    Software.MEGATRON_DEEPSPEED: (Software.MEGATRON,),
}


@cache
def calibrations() -> dict[str, Calibration]:
    """Return the fitted tables by name."""
    text = files(__package__).joinpath("calibrations.json").read_text(encoding="utf-8")
    return {name: _read(name, values) for name, values in json.loads(text).items()}


def _read(name: str, values: dict[str, Any]) -> Calibration:
    fields = dict(values)
    fields["kernels"] = Efficiency(**fields["kernels"])
    fields["links"] = LinkEfficiency(**fields["links"])
    fields["rows"] = tuple(fields["rows"])
    return Calibration(name, **fields)


@cache
def calibration(family: str, software: OrText[Software]) -> Calibration:
    """Return the table of a device family and a software family, or the nearest one."""
    known = calibrations()
    software = Software.of("software", software)
    near = (software, *_ALIKE.get(software, ()), Software.MEGATRON)
    names = [f"{family}/{one.value}" for one in (*near, *Software)]
    names += [f"{other}/{one.value}" for other in _NEAREST for one in near]
    found = next((known[name] for name in names if name in known), Calibration())
    wanted = names[0]
    return found if found.name == wanted else replace(found, name=f"{wanted} by {found.name}")


def tables_by_kind(
    first: Calibration, cluster: TrainingCluster, software: OrText[Software]
) -> tuple[Calibration, ...]:
    """Return the table of each kind of nodes: `first`, then shipped tables of the other kinds."""
    others = (nodes.accelerator.family for nodes in cluster.nodes[1:])
    return first, *(calibration(family, software) for family in others)


@dataclass(frozen=True)
class Measurements:
    """Results of ``stagecut measure``: medians of measured links, and rates of large products."""

    # peer, network: median link between ranks of one host, and of different hosts; None: no such
    # pair was measured
    peer: Link | None
    network: Link | None
    # operations per second that large matrix products reach, by precision
    products: tuple[tuple[NumberFormat, float], ...]


def load_measurements(path: Path) -> Measurements:
    """Read the measurements in a file with the output of ``stagecut measure --json``.

    InputError if the file cannot be read or has other content.
    """
    content = read_source(path).table("what stagecut measure --json prints")
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
    """Return `table` with the measured efficiencies of links and products in place of its own.

    A measured efficiency is a measured rate divided by the rate on the cluster's data sheet. What
    was not measured keeps the value of `table`.
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


#: Fields of `Efficiency` that are fractions of a peak, and the precisions whose measured rates
#: give them, the preferred one first.
_PARTS = (
    ("product", (NumberFormat.BF16, NumberFormat.FP16, NumberFormat.TF32, NumberFormat.FP32)),
    ("product8", (NumberFormat.FP8, NumberFormat.FP8_BLOCK, NumberFormat.MXFP8)),
    ("product4", (NumberFormat.NVFP4,)),
)


def _reached(measured: Measurements, device: Accelerator) -> dict[str, float]:
    """Return the fraction of the peak that measured products reach, by field of `Efficiency`."""
    rates = dict(measured.products)
    found = {}
    for part, precisions in _PARTS:
        known = [one for one in precisions if one in rates and one in device.peak]
        if known:
            found[part] = rates[known[0]] / device.peak[known[0]]
    return found
