"""Seconds of collectives, by the size of the group and its place on the cluster.

A group of n ranks with stride s over domains of D devices has k = min(n, D/s) members in each
domain. A ring uses peer links inside domains, and the k network cards of its members between them.
The D/k groups that run at the same time use the other cards, so a group with k = 1 has one card.
A ring leaves each leaf switch once, whatever its number l of members below the switch: where l is
not all of n, `card` is the bandwidth of a card times min(1, l/(k o)), with oversubscription o of
the links above the switches. With hop latency α and bandwidth W = min(peer, k · card),

    all-gather, reduce-scatter:  (n−1)/n · bytes/W + (n−1) α                                   (1)
    all-reduce:                  twice (1), or a tree: 2 bytes/W + 2 log₂(n) α                  (2)
    all-to-all:                  each card carries (n−k)/n · bytes, which leave its domain      (3)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntFlag

from ..model.cluster import Link
from .hardware import TrainingCluster


@dataclass(frozen=True)
class LinkEfficiency:
    """Efficiencies and latencies of collectives on peer links and on the network."""

    peer: float = 0.75  # peer, network: fractions reached of the data sheet's bandwidth
    network: float = 0.80
    # peer_latency, network_latency: seconds of a step of a ring inside a domain, and between
    # domains
    peer_latency: float = 2e-6
    network_latency: float = 8e-6
    start: float = 12e-6  # seconds to launch a collective, whatever its size
    # seconds that ranks wait for each other, per doubling of the group, since they never arrive at
    # the same moment
    skew: float = 20e-6


@dataclass(frozen=True)
class Group:
    """Ranks of one collective: their number, and their distance in the order of ranks."""

    size: int  # ranks
    stride: int = 1  # difference between the numbers of two neighbours


class UsedLinks(IntFlag):
    """Links that a transfer keeps busy."""

    NONE = 0
    #: Peer links, between devices of one domain.
    PEER = 1
    #: Network links, between domains.
    NETWORK = 2


def links_of(group: Group, cluster: TrainingCluster) -> UsedLinks:
    """Return the links that a group's collectives keep busy."""
    k = members_per_domain(group, cluster)
    inside = UsedLinks.PEER if k > 1 else UsedLinks.NONE
    return inside | (UsedLinks.NETWORK if k < group.size else UsedLinks.NONE)


def members_per_domain(group: Group, cluster: TrainingCluster) -> int:
    """Return the number of a group's ranks in one domain of peer links."""
    return max(1, min(group.size, cluster.domain // max(1, group.stride)))


def bandwidth(group: Group, cluster: TrainingCluster, links: LinkEfficiency) -> float:
    """Return the bandwidth of a ring over the group, bytes per second in one direction."""
    k = members_per_domain(group, cluster)
    peer = cluster.accelerator.peer_bandwidth * links.peer
    if k >= group.size:
        return peer
    card = cluster.network.bandwidth * links.network
    below = members_per_leaf(group, cluster)
    if below < group.size:
        card *= min(1.0, below / (k * cluster.network.oversubscription))
    return min(peer, k * card) if k > 1 else card


def members_per_leaf(group: Group, cluster: TrainingCluster) -> int:
    """Return the number of a group's ranks below one leaf switch."""
    leaf = cluster.network.leaf or cluster.devices
    return max(1, min(group.size, leaf // max(1, group.stride)))


def crowding(group: Group, cluster: TrainingCluster) -> float:
    """Return the factor on a card's seconds for equal parts to every rank on another node.

    It is above 1 if the links above leaf switches take longer for what crosses them.
    """
    k, below = members_per_domain(group, cluster), members_per_leaf(group, cluster)
    above = (group.size - below) / max(1, group.size - k)
    return max(1.0, above * cluster.network.oversubscription)


def _start_time(group: Group, links: LinkEfficiency) -> float:
    """Return the seconds to launch a collective on all ranks of a group."""
    return links.start + skew(group, links)


def _latency(group: Group, cluster: TrainingCluster, links: LinkEfficiency) -> float:
    """Return the latency of one pass around a ring, seconds."""
    k = members_per_domain(group, cluster)
    domains = math.ceil(group.size / k)
    inside = (group.size - domains) * links.peer_latency
    return inside + (domains - 1 if domains > 1 else 0) * links.network_latency


def skew(group: Group, links: LinkEfficiency) -> float:
    """Return the seconds that the ranks of a group wait for the last of them."""
    return links.skew * math.log2(group.size)


def all_gather(
    moved: float, group: Group, cluster: TrainingCluster, links: LinkEfficiency
) -> float:
    """Return the seconds of an all-gather, or reduce-scatter, of a tensor of `moved` bytes."""
    n = group.size
    if n <= 1 or moved <= 0:
        return 0.0
    share = (n - 1) / n * moved / bandwidth(group, cluster, links)
    return _start_time(group, links) + share + _latency(group, cluster, links)


def all_reduce(
    moved: float, group: Group, cluster: TrainingCluster, links: LinkEfficiency
) -> float:
    """Return the seconds of an all-reduce of `moved` bytes, by the faster of ring and tree."""
    n = group.size
    if n <= 1 or moved <= 0:
        return 0.0
    wire = moved / bandwidth(group, cluster, links)
    k = members_per_domain(group, cluster)
    domains = math.ceil(n / k)
    ring = 2 * (n - 1) / n * wire + 2 * _latency(group, cluster, links)
    tree = 2 * wire + 2 * (
        (k - 1) * links.peer_latency + math.ceil(math.log2(domains)) * links.network_latency
    )
    return _start_time(group, links) + min(ring, tree)


def all_to_all(
    moved: float, group: Group, cluster: TrainingCluster, links: LinkEfficiency
) -> float:
    """Return the seconds of an all-to-all in which each rank sends `moved` bytes in all."""
    n = group.size
    if n <= 1 or moved <= 0:
        return 0.0
    k = members_per_domain(group, cluster)
    peer = cluster.accelerator.peer_bandwidth * links.peer
    card = cluster.network.bandwidth * links.network
    inside = (k - 1) / n * moved / peer
    across = (n - k) / n * moved / card * crowding(group, cluster)
    steps = links.network_latency * math.log2(max(2, n / k)) if n > k else 0.0
    return _start_time(group, links) + max(inside, across) + steps


def message(moved: float, stride: int, cluster: TrainingCluster, links: LinkEfficiency) -> float:
    """Return the seconds of a message of `moved` bytes to the rank `stride` ranks away."""
    if moved <= 0:
        return 0.0
    if stride < cluster.domain:
        return links.start + moved / (cluster.accelerator.peer_bandwidth * links.peer)
    card = cluster.network.bandwidth * links.network
    if stride >= (cluster.network.leaf or cluster.devices):
        card /= cluster.network.oversubscription
    return links.start + links.network_latency + moved / card


def mesh_links(
    shape: tuple[int, ...], cluster: TrainingCluster, links: LinkEfficiency
) -> tuple[Link, ...]:
    """Return the link along each axis of a mesh over the cluster; ranks vary fastest on the last.

    A link has the bandwidth of a ring over the axis, and the latency of one of its steps. Sharding
    prices a collective as such steps, and so obtains the ring times of this module.
    """
    found, stride = [], 1
    for size in reversed(shape):
        group = Group(size, stride)
        once = _start_time(group, links) + _latency(group, cluster, links)
        found.append(Link(once / max(1, size - 1), bandwidth(group, cluster, links)))
        stride *= size
    return tuple(reversed(found))
