"""`stagecut report`: a recorded run beside its simulation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..instances import InputError, Plan, Sharding, Workload
from ..instances.common.escape import csv as csv_cell
from ..instances.formats.writing import write_whole
from .common import names, options
from .common.console import check_outputs, print_json, tell_written
from .common.pose import choose_network

if TYPE_CHECKING:
    from ..runtime.accuracy.join import Comparison


def report(
    workload: options.WorkloadArgument,
    plan: options.PlanArgument,
    recording: Annotated[Path, typer.Argument(help="What stagecut run --record wrote.")],
    weight_share: options.WeightShare = None,
    network: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.one_of("host", "p2p", "bus"),
            help="Of the simulation: host, p2p or bus.",
        ),
    ] = None,
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
    as_json: options.AsJson = False,
) -> None:
    """Compare a recorded run of PLAN with its simulation: actions, stages, time of a step.

    Errors are predicted / measured − 1. Of a sharding, what was sent and when is compared.
    """
    from ..instances.formats.files import load, load_plan_with_form, save
    from ..runtime.accuracy.join import compare_run
    from ..runtime.execution.recording_file import load_recording
    from ..runtime.simulate.plan_stages import stages_of
    from .show.recorded_run import as_dict, print_calibration, print_report

    check_outputs(trace, csv, calibrate, pictures=[plot], inputs=[workload, plan, recording])
    loaded, made = load_plan_with_form(plan, load(workload))
    if isinstance(made.problem, Sharding):
        given = {
            "--weight-share": weight_share, "--network": network, "--bandwidth": bandwidth,
            "--latency": latency or None, "--overlap": overlap, "--warm-up": warm_up,
            "--plot": plot, "--trace": trace, "--csv": csv, "--calibrate": calibrate,
            "--json": as_json or None,
        }  # fmt: skip
        _report_sharding(loaded, made, recording, given)
        return
    stages = stages_of(loaded, made)
    moves = choose_network(stages, made, network or "host", bandwidth, latency, None, overlap)
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
        from ..runtime.accuracy.calibrate import calibrate as correct

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


def _report_sharding(
    workload: Workload, plan: Plan, recording: Path, given: Mapping[str, object]
) -> None:
    """Print a recorded run of a sharding beside what was predicted; no option is for it."""
    from ..runtime.accuracy.sharded import compare_sharded_run
    from ..runtime.execution.sharded.recording import load_sharded_recording
    from .show.recorded_run import print_sharded_run

    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option}: the report of a sharding has none; leave it out")
    print_sharded_run(compare_sharded_run(workload, plan, load_sharded_recording(recording)))


def _write(comparison: Comparison, plot: Path | None, trace: Path | None, csv: Path | None) -> None:
    if plot is not None:
        from ..runtime.accuracy.chart import draw_comparison

        draw_comparison(comparison, plot)
    if trace is not None:
        from ..runtime.accuracy.chart import comparison_trace

        write_whole(trace, json.dumps(comparison_trace(comparison), ensure_ascii=False))
    if csv is not None:
        write_whole(csv, comparison.actions.map(csv_cell).to_csv(index=False))
