"""Meshes of devices and their links, as they are typed."""

from __future__ import annotations

import math
import re

from ...instances import InputError, Link, Workload
from .console import parse_bytes

_LATENCY = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(s|ms|us|ns|)")
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


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


def parse_links(text: str | None, shape: tuple[int, ...], workload: Workload) -> tuple[Link, ...]:
    """Return the link of each axis; one that is given alone is that of all.

    A cluster such as ``h100:8x2`` has the links that its collectives are priced by in estimates.
    """
    axes = len(shape)
    if text is None:
        kinds = () if workload.cluster is None else workload.cluster.kinds
        known = [kind.link for kind in kinds if kind.link is not None]
        if not known:
            raise InputError(f"--links: {workload.name} suggests none; give for example 10us:25GB")
        return (known[0],) * axes
    if text[:1].isalpha() and ":" in text:
        return _links_of(text, shape)
    found = []
    for part in text.split(","):
        latency, colon, bandwidth = part.partition(":")
        match = _LATENCY.fullmatch(latency.strip())
        speed = parse_bytes(bandwidth, "--links") if colon and match else None
        if match is None or not speed:
            raise InputError(f"--links: {part!r} is no link; write for example 10us:25GB/s")
        found.append(Link(float(match[1]) * _SECONDS[match[2]], speed))
    if len(found) == 1:
        found *= axes
    if len(found) != axes:
        raise InputError(f"--links: {len(found)} links for {axes} axes of the mesh; give one each")
    return tuple(found)


def _links_of(text: str, shape: tuple[int, ...]) -> tuple[Link, ...]:
    """Return the links of a cluster of just so many devices."""
    from ...instances.costs.calibration import calibration
    from ...instances.costs.clusters import training_cluster
    from ...instances.costs.collectives import mesh_links
    from ...instances.costs.layout import Software

    cluster = training_cluster(text)
    if cluster.devices != math.prod(shape):
        raise InputError(
            f"--links: {text} has {cluster.devices} devices, and the mesh {math.prod(shape)}; "
            "give a cluster of as many"
        )
    table = calibration(cluster.accelerator.family, Software.MEGATRON)
    return mesh_links(shape, cluster, table.links)
