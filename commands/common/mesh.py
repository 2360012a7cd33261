"""Meshes of devices as they are typed."""

from __future__ import annotations

from ...instances import InputError


def parse_mesh(text: str) -> tuple[int, ...]:
    """Return the devices along each axis that a text such as ``2x4`` means.

    Examples
    --------
    >>> parse_mesh("2x4")
    (2, 4)
    """
    parts = text.split("x")
    if not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(f"--mesh: {text!r} is no mesh; write the devices of each axis: 4 or 2x4")
    return tuple(int(part) for part in parts)
