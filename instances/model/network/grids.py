"""Grids whose links are all alike: distances in closed form."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from ...common.arrays import Floats, Ints

Number = TypeVar("Number", int, Ints)


def grid_links(sides: tuple[int, ...], wraps: bool) -> Ints:
    """Return the links of a mesh, or of a torus if it wraps; shape (E, 2), lower number first.

    Devices are numbered in row-major order.
    """
    index = np.arange(int(np.prod(sides))).reshape(sides)
    pairs = []
    for axis, side in enumerate(sides):
        ahead = np.roll(index, -1, axis)
        # around a side of two, the link back is the link there
        keep = slice(None) if wraps and side > 2 else slice(0, side - 1)
        cut = tuple(keep if a == axis else slice(None) for a in range(len(sides)))
        pairs.append(np.stack([index[cut].ravel(), ahead[cut].ravel()], axis=1))
    return np.sort(np.concatenate(pairs), axis=1)


def is_even_grid(
    sides: tuple[int, ...], wraps: bool, links: Ints, latency_s: Floats, bytes_per_s: Floats
) -> bool:
    """Whether these links are those of the grid, each once, and all alike."""
    if not sides or not len(links):
        return False
    wanted = grid_links(sides, wraps)
    if wanted.shape != links.shape:
        return False
    ends = np.sort(links, axis=1)
    same = all(
        np.array_equal(a, b) for a, b in zip(_ordered(wanted).T, _ordered(ends).T, strict=True)
    )
    return same and bool(
        (latency_s == latency_s[0]).all() and (bytes_per_s == bytes_per_s[0]).all()
    )


def grid_hops(sides: tuple[int, ...], wraps: bool, a: int, b: Number) -> Number:
    """Return the number of links on a shortest route from device a to b, or to each of b."""
    hops, step = b - b, 1
    for side in reversed(sides):
        away = abs(b // step % side - a // step % side)
        # of x and side − x the smaller: devices may be many, or one
        hops += (side - abs(side - 2 * away)) // 2 if wraps else away
        step *= side
    return hops


def _ordered(links: Ints) -> Ints:
    ordered: Ints = links[np.lexsort(links.T)]
    return ordered
