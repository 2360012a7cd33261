"""Seconds of kernels on one device: matrix products by their shape, pointwise work, attention.

A matrix product of m × n × k is computed in tiles of its output, which the device's U units take in
waves. With peak P, bandwidth W and the calibrated fraction η of the peak that large products reach,

    time = max( ⌈tiles/U⌉ · tile · (k + k₀) · 2U / (η e P) , bytes / W ) + launch              (1)

where e is the efficiency of a tile's shape (small tiles re-read more), and k₀ what filling and
draining a tile costs, in steps of k. The library takes the tile that is fastest; so does
`product`. Matrix units load operands 16 bytes at a time: where a row is no multiple of that
(NVIDIA, "Matrix multiplication background user's guide"), k is padded to the next one, and smaller
loads reach less of the peak (`LOADED`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from .hardware import Accelerator, NumberFormat

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


#: Part of the peak that is left where rows are multiples of so many bytes alone.
LOADED = {16: 1.0, 8: 0.67, 4: 0.5, 2: 0.36}


@dataclass(frozen=True)
class Efficiency:
    """What kernels of one software family reach on one kind of device."""

    product: float = 0.80  # part of the peak that large, aligned matrix products reach
    # product8, product4: the same for products of 8-bit and of 4-bit numbers, of their peaks
    product8: float = 0.70
    product4: float = 0.60
    depth: float = 128.0  # length in k that filling and draining a tile costs
    memory: float = 0.80  # part of the memory bandwidth that pointwise kernels reach
    # attention, attention_backward: part of the peak that fused attention reaches in either pass
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

    `turned`: both operands lie in memory by their columns, as in gradients of weights, where k
    counts tokens.
    """
    if m <= 0 or n <= 0 or k <= 0 or count <= 0:
        return 0.0
    element = ELEMENT[precision]
    rows_of = (m, n) if turned else (n, k)
    peak = device.peak[precision] * LOADED[min(map(_load, rows_of, (element, element)))]
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
    moved = count * (element * (m * k + k * n) + 2 * m * n)
    return max(best, moved / (device.bandwidth * reach.memory)) + reach.launch


def _load(width: float, element: float) -> int:
    """Return the bytes that are loaded at once of rows of so many elements.

    8- and 4-bit rows are padded to the alignment of 16 bits.
    """
    row = width * max(element, 2.0)
    return next(size for size in LOADED if row % size == 0 or size == 2)


def pointwise(moved: float, kernels: float, device: Accelerator, reach: Efficiency) -> float:
    """Return the seconds of `kernels` memory-bound kernels that move so many bytes in all."""
    return moved / (device.bandwidth * reach.memory) + kernels * reach.launch


def fused_attention(
    operations: float,
    backward: bool,
    device: Accelerator,
    precision: NumberFormat,
    reach: Efficiency,
) -> float:
    """Return the seconds of one fused attention of so many floating-point operations."""
    part = reach.attention_backward if backward else reach.attention
    return operations / (device.peak[precision] * part) + (3 if backward else 1) * reach.launch
