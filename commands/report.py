"""`stagecut report`: a recorded run beside its simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..instances import Plan, Sharding
from ..instances.common.escape import csv as csv_cell
from ..instances.formats.writing import write_whole
from .common import options
from .common.console import (
    OUT,
    check_outputs,
    new_table,
    print_json,
    refuse,
    show_bytes,
    show_count,
    show_percent,
    tell_written,
)
from .common.pose import choose_network

if TYPE_CHECKING:
    from ..runtime.accuracy.comparison import Comparison, ShardedComparison, WorkloadCalibration


def report(
    workload: options.WorkloadArgument,
    plan: options.PlanArgument,
    recording: Annotated[Path, typer.Argument(help="The file that stagecut run --record wrote.")],
    weight_share: options.WeightShare = None,
    network: options.NetworkName = None,
    bandwidth: options.LinkBandwidth = None,
    latency: options.LinkLatency = 0.0,
    overlap: options.Overlap = None,
    warm_up: Annotated[
        int | None,
        typer.Option(help="First steps that do not count; default: 1, if there are more."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted and measured: .png, .svg or .pdf.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto with both rows.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a row per action.")] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Write the workload with the measured times.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare a recorded run of PLAN with its simulation: actions, stages, time of a step.

    Errors are predicted / measured − 1. Of a sharding, what was sent and when is compared.
    """
    from ..instances.formats.files import load, load_plan_with_form, save
    from ..runtime.accuracy.comparison import compare_run
    from ..runtime.execution.recording_file import load_recording
    from ..runtime.simulate.plan_stages import stages_of

    check_outputs(trace, csv, calibrate, pictures=[plot], inputs=[workload, plan, recording])
    loaded, made = load_plan_with_form(plan, load(workload))
    if isinstance(made.problem, Sharding):
        given = {
            "--weight-share": weight_share, "--network": network, "--bandwidth": bandwidth,
            "--latency": latency or None, "--overlap": overlap, "--warm-up": warm_up,
            "--plot": plot, "--trace": trace, "--csv": csv, "--calibrate": calibrate,
            "--json": as_json,
        }  # fmt: skip
        from ..runtime.accuracy.comparison import compare_sharded_run
        from ..runtime.execution.recording_file import load_sharded_recording

        refuse(given, "the report of a sharding has none")
        print_sharded_run(compare_sharded_run(loaded, made, load_sharded_recording(recording)))
        return
    stages = stages_of(loaded, made)
    moves = choose_network(stages, made, network, bandwidth, latency, None, overlap)
    comparison = compare_run(
        loaded,
        made,
        load_recording(recording),
        network=moves,
        weight_share=weight_share,
        warm_up=warm_up,
    )
    calibration = None
    if calibrate is not None:
        from ..runtime.accuracy.comparison import calibrate as correct

        calibration = correct(loaded, made, comparison, recording.name)
        save(calibration.workload, calibrate)
    _write(comparison, plot, trace, csv)
    if as_json:
        print_json(as_dict(comparison))
        return
    print_report(comparison)
    if calibration is not None:
        print_calibration(calibration, made, comparison)
    tell_written(plot, trace, csv, calibrate)


def _write(comparison: Comparison, plot: Path | None, trace: Path | None, csv: Path | None) -> None:
    if plot is not None:
        from ..runtime.accuracy.chart import draw_comparison

        draw_comparison(comparison, plot)
    if trace is not None:
        from ..runtime.accuracy.chart import comparison_trace

        write_whole(trace, json.dumps(comparison_trace(comparison), ensure_ascii=False))
    if csv is not None:
        write_whole(csv, comparison.actions.map(csv_cell).to_csv(index=False))


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
    steps = show_count(len(comparison.steps), "step")
    title = f"{run.schedule}, {show_count(run.microbatches, 'microbatch')}, {steps}"
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
    OUT.print_line(
        f"step: predicted {_ms(comparison.predicted_iteration_s)}, measured "
        f"{_ms(comparison.measured_iteration_s)}, error "
        f"{show_percent(comparison.error, signed=True)}"
    )
    if comparison.optimizer_s:
        OUT.print_wrapped(
            f"the optimizer's {_ms(comparison.optimizer_s)} come on top; they are not predicted"
        )


def print_calibration(calibration: WorkloadCalibration, plan: Plan, comparison: Comparison) -> None:
    """Print the error of a prediction with the measured times."""
    from ..runtime.accuracy.comparison import predicted_after

    after = predicted_after(calibration, plan, comparison)
    OUT.print_line(
        f"calibrated: predicted {_ms(after.predicted_iteration_s)}, error "
        f"{show_percent(after.error, signed=True)}; what is left is waiting and moving data. "
        "Plan again with the new workload."
    )
    if calibration.weight_share is not None:
        OUT.print_wrapped(f"measured --weight-share {calibration.weight_share:.3f}")


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
    OUT.print_line(
        f"step: predicted {_ms(comparison.predicted_s)}, measured {_ms(comparison.measured_s)}, "
        f"error {show_percent(comparison.error, signed=True)}; optimizer "
        f"{_ms(comparison.optimizer_s)} on top"
    )
