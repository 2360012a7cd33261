"""Explanation: its parts, their text and their JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ...instances import Plan
from ...instances.common.escape import markup, plain
from ...runtime.verify.report import Load
from .answers import Crossing, MoveGains, Remedy
from .words import crossings_text, moves_text, remedies_text


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why a plan is as good as it is; it shows itself as text.

    Parameters
    ----------
    plan
        What is explained; None if there is none.
    unit
        Of times: the workload's.
    objective
        Of the plan, recomputed.
    loads
        What every device, or stage, does in the objective's span.
    limiting
        Name of the device or stage that limits; empty if there is no plan.
    reasons
        Sentences: what limits, and why.
    crossings
        The transfers that cost most.
    remedies
        What would help, or would make a plan possible.
    node
        Why a node is where it is, if that was asked.

    Examples
    --------
    >>> import stagecut
    >>> workload, cluster = stagecut.load("gpt2-xl"), stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> explanation = stagecut.explain(workload, plan, seconds=0)
    >>> explanation.limiting in [load.name for load in explanation.loads]
    True
    """

    plan: Plan | None
    unit: str
    objective: float
    loads: tuple[Load, ...]
    limiting: str
    reasons: tuple[str, ...]
    crossings: tuple[Crossing, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    node: MoveGains | None = None

    def __str__(self) -> str:
        return "\n\n".join(plain(part) for part in self._paragraphs())

    def _paragraphs(self) -> Iterator[str]:
        if self.reasons:
            yield "\n".join(self.reasons)
        if self.crossings:
            yield crossings_text(self.crossings, self.unit)
        if self.remedies:
            old = None if self.plan is None else self.objective
            yield remedies_text(self.remedies, old, self.unit)
        if self.node is not None:
            yield moves_text(self.node, self.objective, self.unit)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the text that a notebook shows, as it is."""
        return f"<pre>{markup(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it but the plan, as plain values."""
        return {
            "objective": self.objective,
            "bound": None if self.plan is None else self.plan.bound,
            "time_unit": self.unit,
            "limiting": self.limiting,
            "reasons": list(self.reasons),
            "loads": [asdict(load) for load in self.loads],
            "transfers": [asdict(crossing) for crossing in self.crossings],
            "remedies": [asdict(remedy) for remedy in self.remedies],
            "node": None if self.node is None else asdict(self.node),
        }
