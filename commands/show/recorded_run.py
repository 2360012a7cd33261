"""Output of recorded runs beside their simulations or plans: times, spread and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from ...instances import Plan
from ..common.console import OUT, new_table, show_bytes, show_percent

if TYPE_CHECKING:
    from ...runtime.accuracy.calibrate import WorkloadCalibration
    from ...runtime.accuracy.join import Comparison
    from ...runtime.accuracy.sharded import ShardedComparison


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return the object for `--json`; times in seconds."""
    return {
        "schedule": comparison.recording.schedule,
        "microbatches": comparison.recording.microbatches,
        "steps": len(comparison.steps),
        "iteration": {
            "predicted_s": comparison.predicted_iteration_s,
            "measured_s": comparison.measured_iteration_s,
            "error": comparison.error,
        },
        "optimizer_s": comparison.optimizer_s,
        "stages": comparison.stages.to_dict("records"),
        "kinds": comparison.kinds.to_dict("records"),
    }


def print_report(comparison: Comparison) -> None:
    """Print errors by action, stage and step."""
    run = comparison.recording
    title = f"{run.schedule}, {run.microbatches} microbatches, {len(comparison.steps)} steps"
    table = Table(title=title)
    for name in ("stage", "action", "predicted", "measured", "spread", "error"):
        table.add_column(name, justify="left" if name == "action" else "right")
    for row in comparison.kinds.to_dict("records"):
        table.add_row(
            str(row["stage"]),
            str(row["kind"]),
            _ms(row["predicted_s"]),
            _ms(row["measured_s"]),
            show_percent(row["spread"]),
            show_percent(row["error"], signed=True),
        )
    for row in comparison.stages.to_dict("records"):
        table.add_row(
            str(row["stage"]), f"all, on {row['device']}", _ms(row["predicted_s"]),
            _ms(row["measured_s"]), "", show_percent(row["error"], signed=True),
        )  # fmt: skip
    OUT.print(table)
    OUT.print(
        f"step: predicted {_ms(comparison.predicted_iteration_s)}, measured "
        f"{_ms(comparison.measured_iteration_s)}, error "
        f"{show_percent(comparison.error, signed=True)}",
        highlight=False,
        soft_wrap=True,
    )
    if comparison.optimizer_s:
        OUT.print(
            f"the optimizer's {_ms(comparison.optimizer_s)} come on top; they are not predicted",
            highlight=False,
        )


def print_calibration(calibration: WorkloadCalibration, plan: Plan, comparison: Comparison) -> None:
    """Print the error that is left with measured times."""
    from ...runtime.accuracy.calibrate import predicted_after

    after = predicted_after(calibration, plan, comparison)
    OUT.print(
        f"calibrated: predicted {_ms(after.predicted_iteration_s)}, error "
        f"{show_percent(after.error, signed=True)}; what is left is waiting and moving data. "
        "Plan again with the new workload.",
        highlight=False,
        soft_wrap=True,
    )
    if calibration.weight_share is not None:
        OUT.print(f"measured --weight-share {calibration.weight_share:.3f}", highlight=False)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


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
