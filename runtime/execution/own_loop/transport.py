"""Point-to-point messages of tensors, in an order known to both ranks.

Between two ranks there is a channel each way. The schedule fixes the order in which a rank sends on
a channel, and the other end posts its receives in this order, whatever it needs first; a message
that comes early waits in its buffer. Sending never makes a rank wait. So an action can wait for its
input alone, and a schedule that `validate` accepts cannot deadlock. With NCCL every channel has a
communicator of its own, so that one direction never waits for the other.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...schedules import Kind, Schedule
from ..split import PieceModule


class Message(NamedTuple):
    """Message of a piece's pass for a microbatch: its live set, or gradients of its inputs."""

    piece: int
    backward: bool
    microbatch: int


#: Messages by sender's and receiver's rank, in the order of sending.
Routes = Mapping[tuple[int, int], Sequence[Message]]
#: Ranks of each piece: microbatch j runs on the one at j modulo their number.
Ranks = Sequence[Sequence[int]]


def rank_of(ranks: Ranks, piece: int, microbatch: int) -> int:
    """Return the rank that runs a microbatch of a piece."""
    return ranks[piece][microbatch % len(ranks[piece])]


def routes_of(schedule: Schedule, ranks: Ranks) -> Routes:
    """Return the messages of a schedule, in O(actions)."""
    routes: dict[tuple[int, int], list[Message]] = {}
    for rank in range(len(schedule.actions)):
        for piece, kind, j in schedule.of(rank):
            if kind not in (Kind.F, Kind.B, Kind.I):
                continue
            to = piece + 1 if kind == Kind.F else piece - 1
            if 0 <= to < len(ranks) and rank_of(ranks, to, j) != rank:
                messages = routes.setdefault((rank, rank_of(ranks, to, j)), [])
                messages.append(Message(piece, kind != Kind.F, j))
    return routes


class P2PTransport:
    """Transport of this rank's messages between tensors on a device; all ranks make it together."""

    def __init__(
        self,
        pieces: Sequence[PieceModule],
        routes: Routes,
        device: torch.device,
    ) -> None:
        self.pieces, self.device = pieces, device
        self.rank = dist.get_rank()
        self.expected = {source: own for (source, to), own in routes.items() if to == self.rank}
        self.sources = {m: source for source, own in self.expected.items() for m in own}
        self.targets: dict[Message, list[int]] = {}
        for (source, to), own in sorted(routes.items()):
            for message in own if source == self.rank else ():
                self.targets.setdefault(message, []).append(to)
        self.routed = {message for own in routes.values() for message in own}
        self.coming: dict[int, deque[Message]] = {}
        self.posted: dict[Message, tuple[list[Tensor], list[dist.Work]]] = {}
        self.here: dict[Message, Sequence[Tensor]] = {}  # that stay on this rank
        apart = dist.get_backend() == "nccl"
        self.groups = {
            pair: dist.new_group(list(pair)) if apart else dist.group.WORLD
            for pair in sorted(routes)
        }
        self.pending = _PendingSends(polls=apart)

    def start(self) -> None:
        """Begin a pass over the schedule, with all its messages to come."""
        self.coming = {source: deque(messages) for source, messages in self.expected.items()}

    def send(self, message: Message, tensors: Sequence[Tensor]) -> None:
        """Send a message to all ranks that take it from this one, without waiting."""
        if message not in self.routed:
            self.here[message] = tensors
            return
        parts = [bytes_of(tensor) for tensor in tensors if tensor.numel()]
        for to in self.targets.get(message, ()) if parts else ():
            group = self.groups[self.rank, to]
            sends = [dist.P2POp(dist.isend, part, to, group) for part in parts]
            self.pending.keep(parts, dist.batch_isend_irecv(sends))

    def receive(self, message: Message) -> Sequence[Tensor]:
        """Wait for the tensors of a message and return them."""
        if message not in self.routed:
            return self.here.pop(message)
        source = self.sources[message]
        while message not in self.posted:
            self._post(source)
        if self.coming[source]:
            self._post(source)  # one ahead, so that its transfer runs beside compute
        made, works = self.posted.pop(message)
        for work in works:
            work.wait()
        return made

    def finish(self) -> None:
        """Wait until all messages have arrived."""
        self.pending.finish()

    def _post(self, source: int) -> None:
        """Post the receives of the next message from a rank."""
        message = self.coming[source].popleft()
        piece = self.pieces[message.piece]
        names = piece.inputs if message.backward else piece.outputs
        values = [piece.values[name] for name in names]
        made = [
            torch.empty(value.shape, dtype=value.dtype, device=self.device)
            for value in values
            if value.grad or not message.backward
        ]
        group = self.groups[source, self.rank]
        receives = [dist.P2POp(dist.irecv, bytes_of(x), source, group) for x in made if x.numel()]
        self.posted[message] = made, dist.batch_isend_irecv(receives) if receives else []


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, its own if it is contiguous: backends lack some types."""
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


#: Tensors that are being sent, with the works that send them.
_Send = tuple[list[Tensor], list[dist.Work]]


class _PendingSends:
    """Tensors of unfinished sends, held until they have arrived.

    gloo reports that a send is done only to a thread that waits for it, so a thread waits.
    """

    def __init__(self, *, polls: bool) -> None:
        self.polls = polls
        self.sending: deque[_Send] = deque()
        self.queue: queue.SimpleQueue[_Send | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None

    def keep(self, tensors: list[Tensor], works: list[dist.Work]) -> None:
        if self.polls:
            self.sending.append((tensors, works))
            while self.sending and all(work.is_completed() for work in self.sending[0][1]):
                self.sending.popleft()
            return
        if self.thread is None:
            self.thread = threading.Thread(target=self._wait, name="stagecut sends", daemon=True)
            self.thread.start()
        self.queue.put((tensors, works))

    def finish(self) -> None:
        while self.sending:
            _wait(self.sending.popleft())
        if self.thread is not None:
            self.queue.put(None)
            self.thread.join()
            self.thread = None
        if self.error is not None:
            raise self.error

    def _wait(self) -> None:
        while (send := self.queue.get()) is not None:
            try:
                _wait(send)
            except Exception as error:  # `finish` raises it where it is seen
                self.error = self.error or error


def _wait(send: _Send) -> None:
    for work in send[1]:
        work.wait()
