"""Properties: how a tensor lies on the devices along each axis of a mesh.

Along one axis a tensor is split, S(i), into equal parts of its axis i; a copy on each device, B; or
partial, P: each device has a tensor of the whole shape, and their sum is the tensor. Along several
axes it has a property for each: S0xB on a mesh of 2x4 is split in two, each half copied four times.
Several axes that split one axis of a tensor split it one after the other, the first axis first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...common.errors import InputError, quote

#: A property along one axis: i for S(i), or one of these.
COPIED, PARTIAL = -1, -2

#: A property along every axis of a mesh.
Property = tuple[int, ...]

#: Axes that a tensor can have, at most; torch allows no more.
MOST_AXES = 64

_SPLIT = re.compile(r"S([0-9]{1,2})")


def axis_text(one: int) -> str:
    """Return a property along one axis as text: ``S0``, ``B`` or ``P``."""
    return "B" if one == COPIED else "P" if one == PARTIAL else f"S{one}"


def parse_axis(text: str) -> int:
    """Return the property along one axis that a text names.

    Raises
    ------
    InputError
        If it names none.
    """
    if text == "B":
        return COPIED
    if text == "P":
        return PARTIAL
    found = _SPLIT.fullmatch(text)
    if found is None or int(found[1]) >= MOST_AXES:
        raise InputError(f"property {quote(text)}: it must be B, P, or S0, S1, …")
    return int(found[1])


def property_text(whole: Sequence[int]) -> str:
    """Return a property along every axis as text, such as ``S0xB``."""
    return "x".join(map(axis_text, whole))


def local_shape(shape: Sequence[int], whole: Property, mesh: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the part that one device has.

    Parameters
    ----------
    shape
        Of the whole tensor; what is split must divide.
    whole
        Its property along each axis of the mesh.
    mesh
        Devices along each axis.
    """
    local = list(shape)
    for one, devices in zip(whole, mesh, strict=True):
        if one >= 0:
            local[one] //= devices
    return tuple(local)


def divides(shape: Sequence[int], whole: Property, mesh: Sequence[int]) -> bool:
    """Whether a tensor of this shape can have a property: every split axis divides evenly."""
    parts: dict[int, int] = {}
    for one, devices in zip(whole, mesh, strict=True):
        if one >= len(shape):
            return False
        if one >= 0:
            parts[one] = parts.get(one, 1) * devices
    return all(shape[axis] % count == 0 for axis, count in parts.items())
