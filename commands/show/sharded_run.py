"""A recorded run of a sharding beside its plan, as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.console import OUT, new_table, show_bytes, show_percent

if TYPE_CHECKING:
    from ...runtime.accuracy.sharded import ShardedComparison


def print_sharded_run(comparison: ShardedComparison) -> None:
    """Print a row for computing and for each collective, then the step."""
    columns = ("axis", "calls", "planned", "sent", "predicted", "measured")
    table = new_table(f"{comparison.steps} steps, times in ms", "what", columns)
    for key in sorted(comparison.predicted | comparison.measured, key=lambda key: (key[1], key)):
        planned, measured = comparison.predicted.get(key), comparison.measured.get(key)
        name, axis, _ = key
        table.add_row(
            name,
            "" if axis < 0 or name == "statistics" else str(axis),
            "" if measured is None else str(measured.number),
            "" if planned is None or axis < 0 else show_bytes(planned.bytes),
            "" if measured is None or axis < 0 else show_bytes(measured.bytes),
            "" if planned is None else f"{1e3 * planned.seconds:.3g}",
            "" if measured is None else f"{1e3 * measured.seconds:.3g}",
        )
    OUT.print(table)
    OUT.print(
        f"step: predicted {_ms(comparison.predicted_s)}, measured {_ms(comparison.measured_s)}, "
        f"error {show_percent(comparison.error, signed=True)}; optimizer "
        f"{_ms(comparison.optimizer_s)} on top",
        highlight=False,
        soft_wrap=True,
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"
