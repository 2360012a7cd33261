"""`topology("mesh2d:4x8")`: a topology from the text that names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ..common.errors import InputError, quote
from ..model.network.topology import Topology
from .generators import RANDOM, REGULAR
from .nvidia import read_nvidia
from .topology_json import load_topology

_EXAMPLES = (
    "ring:8, mesh2d:4x8, torus2d:4x8, mesh3d:4x4x4, torus3d:4x4x4, fattree:4, dragonfly:4x4x2, "
    "islands:8x8, random_blk_1:64@seed=3, random_blk_2:64, uniform_dist:64, nvidia:FILE, FILE.json"
)

#: Grids that the published tables use: number of devices → sides.
SIDES_2D = {16: "4x4", 64: "8x8", 256: "16x16"}
SIDES_3D = {64: "4x4x4", 512: "8x8x8"}


def topology(text: str) -> Topology:
    """Return the topology that `text` names.

    ``KIND:SIDES[@KEY=VALUE,…]`` with the keys ``seed`` (random kinds, default 0), ``routing``
    (``hops`` or ``widest``) and ``exclude`` (numbers of devices, joined by +); ``nvidia:FILE``
    for what ``nvidia-smi topo -m`` printed; or a file of ours.

    Parameters
    ----------
    text
        Such as ``mesh2d:4x8``, ``torus2d:4x8``, ``ring:8``, ``fattree:4``, ``islands:4x8`` or
        ``random_blk_1:64@seed=1``.

    Returns
    -------
    Topology
        Its devices are numbered in row-major order.

    Raises
    ------
    InputError
        If there is no such kind or file, or the sides do not fit; the message gives examples.

    Examples
    --------
    >>> topology("mesh2d:2x3").size
    6
    """
    plain, _, tail = text.partition("@")
    options = _options(text, tail)
    kind, _, sides = plain.partition(":")
    if kind == "nvidia":
        found = read_nvidia(Path(sides))
    elif kind in REGULAR:
        count, make = REGULAR[kind]
        numbers = _sides(text, sides)
        if len(numbers) != count:
            raise InputError(f"topology {text}: {kind} takes {count} numbers; such as {_EXAMPLES}")
        found = make(plain, numbers)
    elif kind in RANDOM:
        numbers = _sides(text, sides)
        if len(numbers) != 1:
            raise InputError(f"topology {text}: {kind} takes the number of devices alone")
        seed = _number(text, "seed", options.pop("seed", "0"))
        found = RANDOM[kind](f"{plain}@seed={seed}", numbers[0], np.random.default_rng(seed))
    elif Path(plain).suffix == ".json":
        found = load_topology(plain)
    else:
        raise InputError(f"topology: no {quote(text)}; name one such as {_EXAMPLES}")
    routing = options.pop("routing", found.routing)
    excluded = options.pop("exclude", "")
    for key in options:
        known = "use routing or exclude, and seed for random topologies"
        raise InputError(f"topology {text}: unknown key {quote(key)}; {known}")
    out = tuple(_number(text, "exclude", d) for d in excluded.split("+")) if excluded else ()
    if routing == found.routing and not out:
        return found
    return replace(found, name=text, routing=routing, excluded=(*found.excluded, *out))


def _options(text: str, tail: str) -> dict[str, str]:
    options = {}
    for item in tail.split(",") if tail else ():
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"topology {text}: {quote(item)} is not KEY=VALUE")
        options[key] = value
    return options


def _sides(text: str, sides: str) -> tuple[int, ...]:
    numbers = tuple(_number(text, "sides", side) for side in sides.split("x"))
    if min(numbers) < 1:
        raise InputError(f"topology {text}: a side is below 1")
    return numbers


def _number(text: str, what: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise InputError(
            f"topology {text}: {what}: {quote(value)} is not a whole number; such as {_EXAMPLES}"
        )
    return int(value)
