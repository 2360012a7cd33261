"""Tied weights: weights of several nodes, kept once on one device or in copies.

*Colour.* All users of the weight share a device, which keeps it once.

*Copies.* Each user keeps the weight, its gradient and its optimizer state, as pipelines do whose
first and last stage hold the embedding each (Narayanan et al., "Efficient large-scale language
model training on GPU clusters using Megatron-LM", SC 2021). Two copies on one device count twice,
so memory is never counted too low. In training the gradients are added up before every step of
the optimizer. For that a chain of *exchange nodes*, of no time and no memory, leads from each user
that delivers a gradient to the next: node x has the colour of the one user and an edge to the
other, and its output are the 2 b bytes that a ring all-reduce of b bytes moves over the links of
two devices, there and back. Users on one device so exchange nothing, and any problem prices the
all-reduce as it prices other data. It happens once per batch: of M microbatches, each bears a part,
2 b / M. Without M a batch is one microbatch, and the price an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..common.arrays import Bools
from ..common.errors import InputError, quote


@dataclass(frozen=True)
class Copy:
    """A user of a tied weight, and where its copy lies."""

    # all that share its device whatever becomes of the weight: its forward and backward nodes
    nodes: tuple[int, ...]
    holder: int  # the forward node that holds the weight
    # the backward node that delivers its gradient, and holds that and the optimizer's state; None
    # without
    deliverer: int | None = None


@dataclass(frozen=True)
class Tie:
    """A weight, or several with the same users."""

    weight: str  # its name in the model
    copies: tuple[Copy, ...]  # its users, at least two; the first keeps it where it is there once
    weight_bytes: float  # weight_bytes, gradient_bytes, optimizer_bytes: of one copy
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    # what the all-reduce of two copies costs each, as `Workload.transfer`, per batch; None if the
    # workload has no such times
    exchange_time: float | None = None
    exchange: tuple[int, ...] = field(default=())  # the exchange nodes, where there are some

    @property
    def exchange_bytes(self) -> float:
        """Bytes between two copies, per batch, there and back."""
        return 2 * self.gradient_bytes

    def bytes_of(self, copy: Copy) -> list[tuple[str, int, float]]:
        """Return column of `Workload.extra`, node and bytes of all that a copy takes."""
        late = copy.holder if copy.deliverer is None else copy.deliverer
        return [
            ("weight_bytes", copy.holder, self.weight_bytes),
            ("gradient_bytes", late, self.gradient_bytes),
            ("optimizer_bytes", late, self.optimizer_bytes),
        ]


def check_ties(where: str, backward: Bools, ties: Sequence[Tie]) -> None:
    """Raise InputError unless every tie has two users or more, with nodes of their own."""
    known = range(len(backward))
    exchange = [x for tie in ties for x in tie.exchange]
    for tie in ties:
        what = f"{where}: tie {quote(tie.weight)}"
        nodes = [v for copy in tie.copies for v in copy.nodes]
        sizes = (tie.weight_bytes, tie.gradient_bytes, tie.optimizer_bytes, tie.exchange_time or 0)
        if len(tie.copies) < 2:
            raise InputError(f"{what}: it has {len(tie.copies)} users; a tied weight has two")
        if any(v not in known for v in (*nodes, *tie.exchange)):
            raise InputError(f"{what}: it names a node that does not exist")
        if len(set(nodes)) < len(nodes):
            raise InputError(f"{what}: two of its users have a node in common")
        if set(nodes) & set(exchange) or len(set(exchange)) < len(exchange):
            raise InputError(f"{what}: an exchange node has one tie, and is no user's")
        if not all({c.holder, c.deliverer} - {None} <= set(c.nodes) for c in tie.copies):
            raise InputError(f"{what}: holder and deliverer must be nodes of their user")
        late = [c.deliverer for c in tie.copies if c.deliverer is not None]
        if backward[[c.holder for c in tie.copies]].any() or not backward[late].all():
            raise InputError(f"{what}: its holders are forward nodes, its deliverers backward ones")
        if not all(0 <= size < math.inf for size in sizes):
            raise InputError(f"{what}: its bytes and times must be finite and at least 0")
