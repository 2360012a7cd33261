"""The ties of a workload in our own JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..common.errors import quote
from ..common.units import NodeId
from ..model.ties import Copy, Tie
from .source import Record, Source, plain_id


class CopyRecord(Record):
    """A user of a tied weight; nodes by id, deliverer null without one."""

    nodes: list[int | str]
    holder: int | str
    deliverer: int | str | None = None


class TieRecord(Record):
    """A weight that several nodes use; bytes and time of one copy, time null if not known."""

    weight: str
    copies: list[CopyRecord]
    weight_bytes: float
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    exchange_time: float | None = None
    exchange: list[int | str] = msgspec.field(default_factory=list)


def read_tie(source: Source, record: TieRecord, index: Mapping[NodeId, int]) -> Tie:
    """Return the tie of a record; `index` has the number of each node."""

    def number(node: NodeId) -> int:
        if node not in index:
            source.fail(
                f"tie {quote(record.weight)}: unknown node {plain_id(node)}; add the node or "
                "remove the tie"
            )
        return index[node]

    values: dict[str, Any] = msgspec.structs.asdict(record)
    values["copies"] = tuple(
        Copy(
            tuple(map(number, copy.nodes)),
            number(copy.holder),
            None if copy.deliverer is None else number(copy.deliverer),
        )
        for copy in record.copies
    )
    values["exchange"] = tuple(map(number, record.exchange))
    return Tie(**values)


def write_tie(tie: Tie, ids: Sequence[NodeId]) -> dict[str, object]:
    """Return a tie as JSON values."""
    copies = [
        {
            "nodes": [ids[v] for v in copy.nodes],
            "holder": ids[copy.holder],
            "deliverer": None if copy.deliverer is None else ids[copy.deliverer],
        }
        for copy in tie.copies
    ]
    return {**vars(tie), "copies": copies, "exchange": [ids[v] for v in tie.exchange]}
