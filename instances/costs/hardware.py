"""Accelerators and training clusters: specifications of devices, nodes and networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from ..common.choices import Choice
from ..common.units import MOST_COUNT

#: Types of the numbers in cluster and plan files, with their allowed ranges. A `Size` of 0 often
#: means that a part does not exist.
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e30)]
Ratio = Annotated[float, msgspec.Meta(ge=1, le=MOST_COUNT)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)]


class NumberFormat(Choice):
    """Number format of the inputs of matrix products, with its scaling where several are in use."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    #: 8 bits, one scale per tensor (delayed or current scaling).
    FP8 = "fp8"
    #: 8 bits, a scale per block of 128 elements.
    FP8_BLOCK = "fp8-block"
    #: 8 bits, a scale per 32 elements in hardware.
    MXFP8 = "mxfp8"
    #: 4 bits, a scale per 16 elements.
    NVFP4 = "nvfp4"


@dataclass(frozen=True)
class Accelerator:
    """Specification of one device, from its data sheet."""

    name: str  # name in the table, such as ``h100-sxm``
    # family of devices with the same kernels and efficiencies: ``v100``, ``a100``, ``h100`` …
    family: str
    # dense floating-point operations per second of matrix products, by precision (without sparsity)
    peak: Mapping[NumberFormat, Positive] = field(hash=False)
    vector: Positive  # operations per second on 32-bit floats outside matrix products
    memory_bytes: Positive  # device memory, as the driver reports it
    bandwidth: Positive  # bandwidth of the device memory, bytes per second
    units: Count  # number of streaming multiprocessors or compute units
    # bandwidth to other devices of its domain, one direction, bytes per second
    peer_bandwidth: Positive
    # devices joined by peer links: 8 in most servers, 72 in an NVL72 rack; 1: no peer links
    domain: Count
    host_bandwidth: Positive  # bandwidth to host memory, one direction, bytes per second
    source: str = ""  # sources of the numbers


@dataclass(frozen=True)
class ClusterNetwork:
    """The network between nodes, as one device sees it."""

    # bandwidth of one device while all devices of its node send, one direction, bytes per second
    bandwidth: Positive
    latency: Positive = 5e-6  # seconds from one node to another
    # ratio of the bandwidth below a leaf switch to that above it; 1: full bisection
    oversubscription: Ratio = 1.0
    # devices below one leaf switch, between which bandwidth is not oversubscribed; 0: all
    leaf: Size = 0


@dataclass(frozen=True)
class Nodes:
    """A number of identical nodes."""

    accelerator: Accelerator  # type of their devices
    per_node: Count  # devices per node
    count: Count  # number of nodes

    @property
    def devices(self) -> int:
        """Number of devices of all these nodes."""
        return self.per_node * self.count


@dataclass(frozen=True)
class TrainingCluster:
    """Nodes joined by one network; ranks are numbered in the order of `nodes`.

    Parameters
    ----------
    nodes
        Nodes of each kind.
    network
        Network between nodes.

    Examples
    --------
    >>> import stagecut
    >>> cluster = stagecut.training_cluster("gb200:72x2")
    >>> cluster.devices, cluster.domain, cluster.accelerator.name
    (144, 72, 'gb200')
    """

    nodes: Annotated[tuple[Nodes, ...], msgspec.Meta(min_length=1)]
    network: ClusterNetwork

    @property
    def kinds(self) -> str:
        """Number and name of the devices of each kind, for display."""
        return " + ".join(f"{nodes.devices} {nodes.accelerator.name}" for nodes in self.nodes)

    @property
    def devices(self) -> int:
        """Number of devices of all nodes."""
        return sum(nodes.devices for nodes in self.nodes)

    @property
    def accelerator(self) -> Accelerator:
        """Device type of the first kind of nodes."""
        return self.nodes[0].accelerator

    @property
    def per_node(self) -> int:
        """Number of devices per node of the first kind."""
        return self.nodes[0].per_node

    @property
    def domain(self) -> int:
        """Number of devices joined by peer links: those of a node, or of a rack."""
        return (
            max(self.per_node, self.accelerator.domain)
            if self.accelerator.domain > 8
            else self.per_node
        )
