"""Configurations of layers: costs by tensor degree, with and without recomputation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from ..common.arrays import Bools, Floats, Ints, checked, rebuild
from ..common.errors import InputError, quote
from ..common.units import LARGEST, MOST_COUNT, SMALLEST

#: Fields of `Layers` with a value for each configuration that files write as it is.
PER_CONFIGURATION = (
    "degree", "label", "recomputes", "time", "weight_bytes", "bytes_per_microbatch", "fixed_bytes",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Layers:
    """Configurations of a workload's layers; C configurations, m edges.

    Parameters
    ----------
    node
        Shape (C,): number of the node that each configuration belongs to.
    degree
        Shape (C,): tensor-parallel degree, the number of devices of one replica.
    label
        Length C: the user's name of each configuration, such as ``vanilla``.
    recomputes
        Shape (C,): whether activations are recomputed in the backward pass.
    time
        Shape (C,): forward and backward pass of one microbatch, in the workload's time unit.
    weight_bytes
        Shape (C,): weights on one device, which replicas synchronise once per batch.
    bytes_per_microbatch, fixed_bytes
        Shape (C,): with y microbatches in flight it takes ``bytes_per_microbatch · y +
        fixed_bytes`` on each device.
    edge_bytes
        Shape (m,): bytes that each edge carries, in the order of `Workload.edges`.
    sync_bytes
        For each configuration, by number of an edge at its node: bytes on top of `edge_bytes` if
        the edge is cut; other edges add nothing.
    microbatches
        Microbatches in a batch; None if not known.
    bandwidth
        Bytes per time unit that a device sends and receives; None if not known.
    sharding
        For each configuration the signatures of the layer's operators, in the order of its
        `layer_program` and separated by spaces; empty where they are not known, or nothing is
        split. Default: all empty.

    Raises
    ------
    InputError
        If lengths differ, or a number is negative or not finite.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.training_layers(stagecut.load("gpt2-xl-training"))
    >>> workload.layers.size == 2 * workload.n, workload.layers.label[:2]
    (True, ('vanilla', 'recompute'))
    """

    node: Ints
    degree: Ints
    label: tuple[str, ...]
    recomputes: Bools
    time: Floats
    weight_bytes: Floats
    bytes_per_microbatch: Floats
    fixed_bytes: Floats
    edge_bytes: Floats
    sync_bytes: tuple[Mapping[int, float], ...]
    microbatches: int | None = None
    bandwidth: float | None = None
    sharding: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__
        for key in ("node", "degree"):
            put(self, key, checked(getattr(self, key), np.int64, f"layers: {key}"))
        put(self, "recomputes", checked(self.recomputes, np.bool_, "layers: recomputes"))
        for key in ("time", "weight_bytes", "bytes_per_microbatch", "fixed_bytes", "edge_bytes"):
            values = checked(getattr(self, key), np.float64, f"layers: {key}")
            for value in values[~((values >= 0) & (values <= LARGEST))][:1].tolist():
                raise InputError(
                    f"layers: {key} holds {quote(value)}; numbers must be from 0 to {LARGEST:g}"
                )
            put(self, key, values)
        put(self, "label", tuple(self.label))
        put(self, "sharding", tuple(self.sharding) or ("",) * len(self.node))
        put(self, "sync_bytes", tuple(MappingProxyType(dict(sync)) for sync in self.sync_bytes))
        for key in (*PER_CONFIGURATION, "sync_bytes", "sharding"):
            if len(getattr(self, key)) != len(self.node):
                raise InputError(
                    f"layers: {key} has {len(getattr(self, key))} values "
                    f"for {len(self.node)} configurations"
                )
        if ((self.degree < 1) | (self.degree > MOST_COUNT)).any():
            raise InputError(f"layers: a tensor degree is not from 1 to {MOST_COUNT}")
        _check_suggestions(self)

    @property
    def size(self) -> int:
        """Number of configurations."""
        return len(self.node)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that a plan depends on."""
        digest = hashlib.sha256()
        sync = [sorted(each.items()) for each in self.sync_bytes]
        digest.update(repr((self.label, sync, self.microbatches, self.bandwidth)).encode())
        for array in (self.node, self.degree, self.recomputes, self.time, self.weight_bytes,
                      self.bytes_per_microbatch, self.fixed_bytes, self.edge_bytes):  # fmt: skip
            digest.update(array.tobytes())
        if any(self.sharding):
            digest.update(repr(self.sharding).encode())
        return digest.hexdigest()

    __reduce__ = rebuild


def _check_suggestions(layers: Layers) -> None:
    if layers.microbatches is not None and not 1 <= layers.microbatches <= MOST_COUNT:
        raise InputError(
            f"layers: microbatches is {quote(layers.microbatches)}; it must be from 1 to "
            f"{MOST_COUNT}"
        )
    if layers.bandwidth is not None and not SMALLEST <= layers.bandwidth <= LARGEST:
        raise InputError(
            f"layers: bandwidth is {quote(layers.bandwidth)}; it must be above 0 and at most "
            f"{LARGEST:g}"
        )
    for sync in layers.sync_bytes:
        for value in sync.values():
            if not 0 <= value <= LARGEST:
                raise InputError(
                    f"layers: sync_bytes holds {quote(value)}; "
                    f"numbers must be from 0 to {LARGEST:g}"
                )
