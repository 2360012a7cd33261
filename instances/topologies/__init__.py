"""Topologies: the devices of a machine and the links between them."""

from ..model.topology import Routes, Topology, topology_from_networkx
from .named import load_topology, save_topology, topology, write_topology

__all__ = [
    "Routes",
    "Topology",
    "load_topology",
    "save_topology",
    "topology",
    "topology_from_networkx",
    "write_topology",
]
