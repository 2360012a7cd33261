"""`stagecut simulate`: a plan over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..instances import InputError, Sharding
from ..instances.formats.source import read_source
from ..instances.formats.writing import PAGES, PICTURES, check_target, write_whole
from ..runtime.simulate.network import Sharing
from .common import names, options
from .common.console import OUT, check_outputs, print_json, tell_written
from .common.pose import NETWORKS, choose_network, named_plan, names_file

if TYPE_CHECKING:
    from ..runtime.simulate.result import Simulation


def simulate(
    workload: options.WorkloadArgument,
    plan: Annotated[
        Path | None, typer.Argument(help="A plan file; a training job's can stand alone.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.SIMULATED_SCHEDULE,
            help="gpipe, 1f1b, interleaved, pipedream, 2bw, zb-h1, zb-h2, single, inference; "
            "or a CSV file with a row of actions such as 0F0,0B0 per device. "
            "Default: 1f1b, for latency plans single, for pipelines their own.",
        ),
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(help="How many run; default: the plan's batch, else 8.")
    ] = None,
    weight_share: options.WeightShare = None,
    network: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.one_of(*NETWORKS),
            help="host: what the plan's problem says, for placements through host memory "
            "(default); p2p; bus: one shared link; topology: of a mapped plan (its default).",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="Of p2p links or the bus, such as 25GB/s; host: of all-reduces."),
    ] = None,
    latency: Annotated[float, typer.Option(help="Of p2p links or the bus, in seconds.")] = 0.0,
    sharing: Annotated[Sharing | None, typer.Option(help="On the bus; default: fair.")] = None,
    overlap: Annotated[
        bool | None,
        typer.Option(
            help="Transfers run beside compute; default: as the plan says, over links yes."
        ),
    ] = None,
    relayed: Annotated[
        bool | None,
        typer.Option(
            help="Pieces talk to their neighbours only, as PyTorch runs them; default: as the "
            "plan says."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto (Chrome JSON).")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the timeline: .svg, .png, .pdf, or a page: .html.")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(help="Draw the graph coloured by device: .svg, .png or .pdf.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the schedule as CSV.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run PLAN in the simulator: timeline, steady state, bubble, memory over time.

    Exit code 2 if the schedule does not fit the plan, is incomplete or deadlocks: the message
    then shows the place in a table of steps and devices.
    """
    from ..instances.formats.files import load, load_plan_with_form
    from ..instances.job.plan import is_job_plan
    from ..runtime.schedules import read_csv
    from ..runtime.simulate.plan_stages import named_schedule, stages_of, usual_schedule
    from ..runtime.simulate.simulator import simulate_stages

    model, plan = named_plan(workload, plan)
    check_outputs(trace, csv, plot, pictures=[graph], inputs=[workload, plan, schedule])
    if plot is not None:
        check_target(plot, (*PICTURES, *PAGES))
    if weight_share is not None and not 0 <= weight_share <= 1:
        raise InputError(f"--weight-share: {weight_share:g}; it must be from 0 to 1")
    if is_job_plan(plan):
        from ..api.explain_job import simulate_job
        from .job import SAID, plan_of, refuse

        said = {
            "--schedule": schedule, "--microbatches": microbatches, "--network": network,
            "--weight-share": weight_share, "--bandwidth": bandwidth, "--sharing": sharing,
            "--overlap": overlap, "--relayed": relayed, "--graph": graph,
            "--latency": latency or None,
        }  # fmt: skip
        refuse(said, SAID)
        job = plan_of(model, plan)
        _show(simulate_job(job), job.model.name, plan.name, trace, plot, csv, as_json=as_json)
        if not as_json:
            OUT.print(
                f"an iteration takes {job.seconds:.4g} s, with what comes after the schedule: "
                "traffic of replicas, optimizer step",
                highlight=False,
                soft_wrap=True,
            )
        return
    loaded, made = load_plan_with_form(plan, load(workload))
    if isinstance(made.problem, Sharding):
        for option, given in (
            ("--schedule", schedule), ("--microbatches", microbatches), ("--network", network),
            ("--weight-share", weight_share), ("--bandwidth", bandwidth), ("--sharing", sharing),
            ("--overlap", overlap), ("--relayed", relayed), ("--csv", csv),
        ):  # fmt: skip
            if given is not None:
                raise InputError(f"{option}: a sharding has none; leave it out")
        from .show.simulation import show_sharded_timeline

        show_sharded_timeline(loaded, made, trace, plot, graph, as_json=as_json)
        return
    stages = stages_of(loaded, made, weight_share=weight_share, relayed=relayed)
    moves = choose_network(stages, made, network, bandwidth, latency, sharing, overlap)
    planned = usual_schedule(made) if schedule is None else named_schedule(made, schedule)
    if schedule is not None and names_file(schedule):
        if microbatches is not None:
            raise InputError(f"--microbatches: {schedule} says how many there are; leave it out")
        actions = read_csv(read_source(schedule).text, name=schedule)
        run = simulate_stages(stages, actions, network=moves)
    else:
        run = simulate_stages(stages, planned, microbatches, network=moves)
    if graph is not None:
        from ..runtime.pictures.graph import draw_graph

        draw_graph(loaded, made, graph)
    _show(run, loaded.name, made.method, trace, plot, csv, as_json=as_json)
    if not as_json:
        tell_written(graph)


def _show(
    run: Simulation,
    name: str,
    method: str,
    trace: Path | None,
    plot: Path | None,
    csv: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write a simulation's files, and print its table."""
    from ..runtime.schedules import write_csv
    from .show.simulation import as_dict, print_simulation

    if trace is not None:
        import json

        from ..runtime.pictures.trace import trace_events

        write_whole(trace, json.dumps(trace_events(run), ensure_ascii=False))
    if plot is not None:
        _draw(run, plot, f"{name}: {run.schedule.name}, {method}")
    if csv is not None:
        write_whole(csv, write_csv(run.schedule))
    if as_json:
        print_json(as_dict(name, run))
    else:
        print_simulation(name, run)
        tell_written(trace, plot, csv)


def _draw(run: Simulation, path: Path, title: str) -> None:
    if path.suffix.lower() in PAGES:
        from ..runtime.pictures.html_page import html_page

        write_whole(path, html_page(run, title=title))
    else:
        from ..runtime.pictures.gantt import draw_gantt

        draw_gantt(run, path)
