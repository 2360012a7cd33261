"""Meshes of devices: rows, or tables, whose axes have a link each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...common.errors import InputError, quote
from ...common.options import check_count
from ..network.links import Link
from ..summary import ByFields

#: Devices of a mesh, and its axes, at most.
MOST_DEVICES, MOST_MESH_AXES = 1 << 20, 3


@dataclass(frozen=True)
class DeviceMesh(ByFields):
    """Devices in a row, or in a table of rows and columns.

    Parameters
    ----------
    shape
        Devices along each axis, the slowest link first by custom.
    links
        For each axis the link between two devices that are neighbours along it.

    Raises
    ------
    InputError
        If there is an axis without devices or without a link, or a bandwidth is infinite.

    Examples
    --------
    >>> import stagecut
    >>> slow, fast = stagecut.Link(1e-5, 12.5e9), stagecut.Link(5e-6, 3e11)
    >>> mesh = DeviceMesh((2, 4), (slow, fast))
    >>> mesh.size, mesh.text
    (8, '2x4')
    """

    shape: tuple[int, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "links", tuple(self.links))
        if not 1 <= len(self.shape) <= MOST_MESH_AXES:
            raise InputError(
                f"mesh: {len(self.shape)} axes; it must have 1 to {MOST_MESH_AXES}, such as 2x4"
            )
        for devices in self.shape:
            check_count("mesh", devices, MOST_DEVICES)
        if self.size > MOST_DEVICES:
            raise InputError(f"mesh: {self.size} devices; at most {MOST_DEVICES} are planned for")
        if len(self.links) != len(self.shape):
            raise InputError(
                f"links: {len(self.links)} for {len(self.shape)} axes of the mesh; give one each"
            )
        for link in self.links:
            if not isinstance(link, Link) or math.isinf(link.bytes_per_s):
                raise InputError(f"links: {quote(link)}; give a latency and a finite bandwidth")

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    @property
    def text(self) -> str:
        """Such as ``2x4``."""
        return "x".join(map(str, self.shape))
