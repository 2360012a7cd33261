"""`stagecut report`: a recorded run beside its simulation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..instances import Plan
from ..instances.common.escape import csv as csv_cell
from ..instances.formats.files import load, load_plan_with_form, save
from ..instances.formats.writing import write_whole
from . import names
from .console import OUT, check_outputs, print_json
from .simulate import choose_network

if TYPE_CHECKING:
    from ..runtime.accuracy.calibrate import Calibration
    from ..runtime.accuracy.join import Comparison


def report(
    workload: Annotated[str, typer.Argument(help="A file, or the name of a shipped workload.")],
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    recording: Annotated[Path, typer.Argument(help="What stagecut run --record wrote.")],
    weight_share: Annotated[
        float | None,
        typer.Option(
            help="Part of a backward pass that computes weight gradients; default: the plan's, "
            "else 0.5."
        ),
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            autocompletion=names.one_of("host", "p2p", "bus"),
            help="Of the simulation: host, p2p or bus.",
        ),
    ] = "host",
    bandwidth: Annotated[str | None, typer.Option(help="Of p2p links or the bus.")] = None,
    latency: Annotated[float, typer.Option(help="Of p2p links or the bus, in seconds.")] = 0.0,
    overlap: Annotated[
        bool | None, typer.Option(help="Transfers run beside compute; default: as the plan says.")
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            help="Steps at the beginning that do not count; default: 1, if there are more."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted and measured: .png, .svg or .pdf.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto with both rows.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a row per action.")] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Write the workload with times as they were measured.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare a recorded run of PLAN with its simulation: actions, stages, time of a step.

    Errors are predicted / measured − 1.
    """
    from ..runtime.accuracy.join import compare_run
    from ..runtime.execution.recording_file import load_recording
    from ..runtime.simulate.plan_stages import stages_of

    check_outputs(trace, csv, calibrate, pictures=[plot], inputs=[workload, plan, recording])
    loaded, made = load_plan_with_form(plan, load(workload))
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
    written = _write(comparison, plot, trace, csv)
    calibration = None
    if calibrate is not None:
        from ..runtime.accuracy.calibrate import calibrate as correct

        calibration = correct(loaded, made, comparison, recording.name)
        save(calibration.workload, calibrate)
        written.append(calibrate)
    if as_json:
        print_json(as_dict(comparison))
        return
    print_report(comparison)
    if calibration is not None:
        _print_calibration(calibration, made, comparison)
    for path in written:
        OUT.print(f"written: {path}", highlight=False, soft_wrap=True)


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return what `--json` prints; times in seconds."""
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


def _write(
    comparison: Comparison, plot: Path | None, trace: Path | None, csv: Path | None
) -> list[Path]:
    written = []
    if plot is not None:
        from ..runtime.accuracy.chart import draw_comparison

        draw_comparison(comparison, plot)
        written.append(plot)
    if trace is not None:
        from ..runtime.accuracy.trace import comparison_trace

        write_whole(trace, json.dumps(comparison_trace(comparison), ensure_ascii=False))
        written.append(trace)
    if csv is not None:
        write_whole(csv, comparison.actions.map(csv_cell).to_csv(index=False))
        written.append(csv)
    return written


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
            f"{100 * row['spread']:.1f} %",
            _percent(row["error"]),
        )
    for row in comparison.stages.to_dict("records"):
        table.add_row(
            str(row["stage"]), f"all, on {row['device']}", _ms(row["predicted_s"]),
            _ms(row["measured_s"]), "", _percent(row["error"]),
        )  # fmt: skip
    OUT.print(table)
    OUT.print(
        f"step: predicted {_ms(comparison.predicted_iteration_s)}, measured "
        f"{_ms(comparison.measured_iteration_s)}, error {_percent(comparison.error)}",
        highlight=False,
        soft_wrap=True,
    )
    if comparison.optimizer_s:
        OUT.print(
            f"the optimizer's {_ms(comparison.optimizer_s)} come on top; they are not predicted",
            highlight=False,
        )


def _print_calibration(calibration: Calibration, plan: Plan, comparison: Comparison) -> None:
    from ..runtime.accuracy.calibrate import predicted_after

    after = predicted_after(calibration, plan, comparison)
    OUT.print(
        f"calibrated: predicted {_ms(after.predicted_iteration_s)}, error {_percent(after.error)}; "
        "what is left is waiting and moving data. Plan again with the new workload.",
        highlight=False,
        soft_wrap=True,
    )
    if calibration.weight_share is not None:
        OUT.print(f"measured --weight-share {calibration.weight_share:.3f}", highlight=False)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


def _percent(error: float) -> str:
    return "unknown" if math.isnan(error) else f"{100 * error:+.1f} %"
