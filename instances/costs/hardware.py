"""Accelerators and training clusters: specifications of devices and networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from ..common.choices import Choice
from ..common.units import MOST_COUNT

#: Numbers and counts of a specification, as files of clusters and plans have them; a size of 0
#: often says that there is no such part.
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e30)]
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
    """Specification of one device, as on its data sheet."""

    name: str  # as the table calls it, such as ``h100-sxm``
    # devices that share kernels and their efficiency: ``v100``, ``a100``, ``h100``, ``b200`` …
    family: str
    # dense floating-point operations per second of matrix products, by precision (without sparsity)
    peak: Mapping[NumberFormat, Positive] = field(hash=False)
    vector: Positive  # operations per second on 32-bit floats outside matrix products
    memory_bytes: Positive  # device memory, as the driver reports it
    bandwidth: Positive  # of the device memory, bytes per second
    units: Count  # streaming multiprocessors or compute units
    peer_bandwidth: Positive  # to other devices of its domain, one direction, bytes per second
    # devices within reach of peer links: 8 in most servers, 72 in an NVL72 rack; 1: none
    domain: Count
    host_bandwidth: Positive  # to host memory, one direction, bytes per second
    source: str = ""  # where the numbers are from


@dataclass(frozen=True)
class ClusterNetwork:
    """The network between nodes, as one device sees it."""

    # of one device when all devices of its node send, one direction, bytes per second
    bandwidth: Positive
    latency: Positive = 5e-6  # seconds from one node to another
    # bandwidth below a switch over that above it; 1: full bisection
    oversubscription: Positive = 1.0
    # devices below one such switch, where bandwidth is not over-subscribed; 0: all
    leaf: Size = 0


@dataclass(frozen=True)
class Nodes:
    """Nodes that are alike."""

    accelerator: Accelerator  # their devices
    per_node: Count  # devices in each
    count: Count  # how many nodes

    @property
    def devices(self) -> int:
        """Number of devices in all of these nodes."""
        return self.per_node * self.count


@dataclass(frozen=True)
class TrainingCluster:
    """Nodes beside each other on one network; ranks are numbered in this order.

    Parameters
    ----------
    nodes
        By kind.
    network
        Between nodes.

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
        """Devices of all nodes."""
        return sum(nodes.devices for nodes in self.nodes)

    @property
    def accelerator(self) -> Accelerator:
        """Device of the first nodes: of all, where there is one kind."""
        return self.nodes[0].accelerator

    @property
    def per_node(self) -> int:
        """Devices of one of the first nodes."""
        return self.nodes[0].per_node

    @property
    def domain(self) -> int:
        """Devices within reach of each other's peer links: a node's, or those of a rack."""
        return (
            max(self.per_node, self.accelerator.domain)
            if self.accelerator.domain > 8
            else self.per_node
        )
