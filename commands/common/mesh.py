"""Meshes of devices and their links, as they are typed."""

from __future__ import annotations

import math
import re

from ...instances import DeviceMesh, InputError, Link, PrimitiveLink, Workload
from ...instances.common.choices import Primitive, Rounds
from .console import parse_bytes

_LATENCY = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(s|ms|us|ns|)")
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the devices along each axis that a text such as ``2x4`` means.

    Examples
    --------
    >>> parse_shape("2x4")
    (2, 4)
    """
    parts = text.split("x")
    if not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(f"--mesh: {text!r} is no mesh; write the devices of each axis: 4 or 2x4")
    return tuple(int(part) for part in parts)


def parse_mesh(text: str, workload: Workload) -> DeviceMesh:
    """Return the mesh that a text such as ``2x4@20us:25GB/s,10us:300GB/s`` means.

    Behind ``@`` stands the link of each axis, or one for all, or a cluster such as ``h100:8x2``,
    whose links are those by which estimates price its collectives; default: the link that the
    workload's file suggests. A link may be followed by those that collectives have of their own, in
    a ring or by a tree: ``10us:25GB/s+gather=5us:20GB/s+broadcast=tree:5us:20GB/s``.
    """
    devices, at, links = text.partition("@")
    shape = parse_shape(devices)
    if not at:
        kinds = () if workload.cluster is None else workload.cluster.kinds
        known = [kind.link for kind in kinds if kind.link is not None]
        if not known:
            raise InputError(
                f"--mesh: {workload.name} suggests no links; give them: {devices}@10us:25GB/s"
            )
        return DeviceMesh(shape, (known[0],) * len(shape))
    if links[:1].isalpha() and ":" in links:
        return DeviceMesh(shape, _links_of(links, shape))
    texts = links.split(",")
    if len(texts) == 1:
        texts *= len(shape)
    if len(texts) != len(shape):
        raise InputError(
            f"--mesh: {len(texts)} links for {len(shape)} axes of the mesh; give one each"
        )
    each = [re.split(r"\+(?=[a-z])", text) for text in texts]
    primitives = [
        _parse_primitive(text, axis) for axis, (_, *own) in enumerate(each) for text in own
    ]
    return DeviceMesh(shape, tuple(parse_link(one[0]) for one in each), tuple(primitives))


def parse_link(text: str) -> Link:
    """Return the link that a text such as ``10us:25GB/s`` means.

    Examples
    --------
    >>> parse_link("10us:25GB/s")
    Link(latency_s=9.999999999999999e-06, bytes_per_s=25000000000.0)
    """
    latency, colon, bandwidth = text.partition(":")
    match = _LATENCY.fullmatch(latency.strip())
    speed = parse_bytes(bandwidth, "--mesh") if colon and match else None
    if match is None or not speed:
        raise InputError(f"--mesh: {text!r} is no link; write for example 10us:25GB/s")
    return Link(float(match[1]) * _SECONDS[match[2]], speed)


def show_link(link: Link) -> str:
    """Return a link as it is typed.

    Examples
    --------
    >>> show_link(Link(1e-5, 25e9))
    '10us:25GB/s'
    """
    return f"{1e6 * link.latency_s:.4g}us:{link.bytes_per_s / 1e9:.4g}GB/s"


def _parse_primitive(text: str, axis: int) -> PrimitiveLink:
    """Return the collective, with its link, that a text such as ``gather=5us:20GB/s`` means."""
    name, equals, link = text.partition("=")
    if not equals:
        raise InputError(f"--mesh: {text!r} is no collective; write for example gather=5us:20GB/s")
    algorithm = Rounds.RING
    if link[:1].isalpha():
        written, _, link = link.partition(":")
        algorithm = Rounds.of("--mesh", written)
    return PrimitiveLink(Primitive.of("--mesh", name), parse_link(link), algorithm, axis)


def _links_of(text: str, shape: tuple[int, ...]) -> tuple[Link, ...]:
    """Return the links of a cluster of just so many devices."""
    from ...instances.costs.calibration import calibration
    from ...instances.costs.clusters import training_cluster
    from ...instances.costs.collectives import mesh_links
    from ...instances.costs.layout import Software

    cluster = training_cluster(text)
    if cluster.devices != math.prod(shape):
        raise InputError(
            f"--mesh: {text} has {cluster.devices} devices, and the mesh {math.prod(shape)}; "
            "give a cluster of as many"
        )
    table = calibration(cluster.accelerator.family, Software.MEGATRON)
    return mesh_links(shape, cluster, table.links)
