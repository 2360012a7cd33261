"""Accelerators and training clusters: what specification sheets say of devices and networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..common.choices import Choice


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
    """What the specification sheet says about one device.

    Parameters
    ----------
    name
        As the table calls it, such as ``h100-sxm``.
    family
        Devices that share kernels and their efficiency: ``v100``, ``a100``, ``h100``, ``b200`` …
    peak
        Dense floating-point operations per second of matrix products, by precision (without
        sparsity).
    vector
        Operations per second on 32-bit floats outside matrix products.
    memory_bytes
        Device memory, as the driver reports it.
    bandwidth
        Of the device memory, bytes per second.
    units
        Streaming multiprocessors or compute units.
    peer_bandwidth
        To other devices of its domain, one direction, bytes per second.
    domain
        Devices within reach of peer links: 8 in most servers, 72 in an NVL72 rack; 1: none.
    host_bandwidth
        To host memory, one direction, bytes per second.
    source
        Where the numbers are from.
    """

    name: str
    family: str
    peak: Mapping[NumberFormat, float] = field(hash=False)
    vector: float
    memory_bytes: float
    bandwidth: float
    units: int
    peer_bandwidth: float
    domain: int
    host_bandwidth: float
    source: str = ""


@dataclass(frozen=True)
class ClusterNetwork:
    """The network between nodes, as one device sees it.

    Parameters
    ----------
    bandwidth
        Of one device when all devices of its node send, one direction, bytes per second.
    latency
        Seconds from one node to another.
    rails
        Network cards of a node, each with its own rail; 0: one per device.
    oversubscription
        Bandwidth below a switch over that above it; 1: full bisection.
    leaf
        Devices below one such switch, where bandwidth is not over-subscribed; 0: all.
    """

    bandwidth: float
    latency: float = 5e-6
    rails: int = 0
    oversubscription: float = 1.0
    leaf: int = 0


@dataclass(frozen=True)
class Nodes:
    """Nodes that are alike.

    Parameters
    ----------
    accelerator
        Their devices.
    per_node
        Devices in each.
    count
        How many nodes.
    """

    accelerator: Accelerator
    per_node: int
    count: int

    @property
    def devices(self) -> int:
        """Devices in all of them."""
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

    nodes: tuple[Nodes, ...]
    network: ClusterNetwork

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
