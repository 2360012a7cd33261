"""Meshes of devices: rows, or tables, whose axes have a link each, and collectives their own."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ...common.choices import OrText, Primitive, Rounds, choose
from ...common.errors import InputError, quote
from ...common.quantities import check_count
from ..network.links import Link
from ..summary import ByFields

#: Devices of a mesh, and its axes, at most.
MOST_DEVICES, MOST_MESH_AXES = 1 << 20, 3


@dataclass(frozen=True)
class PrimitiveLink(ByFields):
    """Link and algorithm of one collective along an axis of a mesh.

    Parameters
    ----------
    primitive
        ``all-gather``, ``reduce-scatter``, ``all-reduce``, ``all-to-all``, ``gather``, ``scatter``,
        ``reduce`` or ``broadcast``.
    link
        What a message of it takes between two devices.
    algorithm
        ``ring``: p − 1 rounds for p devices, an all-reduce twice as many. ``tree``: ⌈log₂ p⌉ rounds
        instead; there is none for all-to-all.
    axis
        Of the mesh, from 0.

    Raises
    ------
    InputError
        If the collective, its algorithm or the axis is none that there is.

    References
    ----------
    R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
    MPICH", 2005, sections 3 and 4: rings, recursive doubling and halving, binomial trees.

    Examples
    --------
    >>> import stagecut
    >>> link = stagecut.Link(1e-6, 25e9)
    >>> own = (PrimitiveLink("gather", link), PrimitiveLink("broadcast", link, "tree"))
    >>> mesh = stagecut.DeviceMesh((8,), (stagecut.Link(1e-5, 1e10),), own)
    >>> mesh.priced(Primitive.BROADCAST, 0).algorithm
    'tree'
    """

    primitive: OrText[Primitive]
    link: Link
    algorithm: OrText[Rounds] = Rounds.RING
    axis: int = 0

    def __post_init__(self) -> None:
        choose(self, primitive=Primitive, algorithm=Rounds)
        if isinstance(self.axis, bool) or not isinstance(self.axis, int) or self.axis < 0:
            raise InputError(f"axis: {quote(self.axis)}; it must be a number from 0")
        if (self.primitive, self.algorithm) == (Primitive.ALL_TO_ALL, Rounds.TREE):
            raise InputError("algorithm: an all-to-all has no tree; leave the algorithm out")


@dataclass(frozen=True)
class DeviceMesh(ByFields):
    """Devices in a row, or in a table of rows and columns.

    Parameters
    ----------
    shape
        Devices along each axis, the slowest link first by custom.
    links
        For each axis the link between two devices that are neighbours along it.
    primitives
        The collectives that have a link or an algorithm of their own; all others pass over the
        axis's link in a ring. A conversion is by the cheapest of those that do it.

    Raises
    ------
    InputError
        If there is an axis without devices or without a link, a bandwidth is infinite, or a
        collective is given twice, or for an axis that there is not.

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
    primitives: tuple[PrimitiveLink, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "links", tuple(self.links))
        object.__setattr__(self, "primitives", tuple(self.primitives))
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
        for link in (*self.links, *(one.link for one in self.primitives)):
            if not isinstance(link, Link) or math.isinf(link.bytes_per_s):
                raise InputError(f"links: {quote(link)}; give a latency and a finite bandwidth")
        for one, times in Counter((one.axis, one.primitive) for one in self.primitives).items():
            if one[0] >= len(self.shape):
                raise InputError(f"primitives: {one[1]}: the mesh has no axis {one[0]}")
            if times > 1:
                raise InputError(f"primitives: {one[1]} is given twice along axis {one[0]}")

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    def priced(self, primitive: Primitive, axis: int) -> PrimitiveLink:
        """Return the link and the algorithm of a collective along an axis."""
        for one in self.primitives:
            if (one.primitive, one.axis) == (primitive, axis):
                return one
        return PrimitiveLink(primitive, self.links[axis], axis=axis)

    @property
    def text(self) -> str:
        """Such as ``2x4``."""
        return "x".join(map(str, self.shape))
