"""`stagecut measure`: the machines as a cluster file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..instances import InputError
from ..runtime.measure.measurement import LinkDetail
from .common import options
from .common.console import (
    ERR,
    OUT,
    check_outputs,
    need,
    new_table,
    parse_bytes,
    print_json,
    show_bytes,
    show_count,
    show_percent,
    tell_written,
)
from .common.pose import parse_shape, show_link

if TYPE_CHECKING:
    import torch

    from ..runtime.measure.collectives import MeasuredAxis
    from ..runtime.measure.fit import Fit
    from ..runtime.measure.measurement import Measurement

HOW = "torchrun --nproc-per-node 2 -m stagecut measure -o cluster.json"
#: More pairs than this are not listed one by one.
MOST_LISTED = 28
#: Columns of a fit.
_TITLES = ("latency", "bandwidth", "typical error", "worst error")


def measure(
    output: Annotated[Path, typer.Option("-o", "--output", help="The cluster file to write.")],
    topology: Annotated[
        Path | None,
        typer.Option(help="Write every pair's link too, as a topology for mappings."),
    ] = None,
    links: Annotated[
        LinkDetail,
        typer.Option(
            help="typical: the median for all pairs; each: one link per pair; auto: each if they "
            "differ by more than a factor of 2."
        ),
    ] = LinkDetail.AUTO,
    plot: Annotated[
        Path | None, typer.Option(help="Draw times, fits and residuals: .png, .svg or .pdf.")
    ] = None,
    device: options.DeviceType = "auto",
    seconds: Annotated[
        float, typer.Option(help="Time to spend on all pairs together, roughly.")
    ] = 10.0,
    largest: Annotated[str, typer.Option(help="Size of the largest message.")] = "16MiB",
    mesh: Annotated[
        str | None,
        typer.Option(
            help="Time the collectives of shardings too, along each axis of a mesh of all ranks, "
            "such as 4 or 2x2: links for shardings. On CPUs."
        ),
    ] = None,
    products: Annotated[
        bool,
        typer.Option(
            "--products",
            help="Time large matrix products too; with --json for stagecut estimate --measured.",
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Time messages between every pair of ranks, and write latency and bandwidth as a cluster.

    Start it under torchrun, with the ranks and hosts that will run the plan; device d of the
    cluster is rank d.
    """
    from ..instances.formats.files import save
    from ..instances.topologies import save_topology
    from ..runtime.measure.measurement import to_cluster, to_topology

    need("torch", "runtime")
    check_outputs(output, topology, pictures=[plot])
    if not seconds > 0:
        raise InputError(f"--seconds: {seconds:g}; it must be above 0")
    most = parse_bytes(largest, "--largest")
    shape = () if mesh is None else parse_shape(mesh)
    if shape and device == "cuda":
        raise InputError("--mesh: shardings run on CPUs alone; use --device cpu")
    measurement, axes, place = _measure("cpu" if shape else device, seconds, most, shape)
    if os.environ["RANK"] != "0":
        return
    rates: dict[str, float] = {}
    if products:
        from ..runtime.measure.timing import measure_products

        rates = measure_products(place, seconds)
    save(to_cluster(measurement, links), output)
    if topology is not None:
        save_topology(to_topology(measurement), topology)
    if plot is not None:
        from ..runtime.measure.picture import draw_measurement

        draw_measurement(measurement, plot)
    if as_json:
        print_json(as_dict(measurement, axes, rates))
        return
    _print(measurement)
    for precision, rate in rates.items():
        OUT.print_wrapped(f"matrix products in {precision}: {rate / 1e12:.4g} TFLOP/s")
    if axes:
        _print_axes(axes)
    tell_written(output, topology, plot)


def _measure(
    device: str, seconds: float, largest: float, shape: tuple[int, ...]
) -> tuple[Measurement, tuple[MeasuredAxis, ...], torch.device]:
    from ..runtime.measure.collectives import measure_collectives
    from ..runtime.measure.group import process_group
    from ..runtime.measure.timing import SIZES, measure

    sizes = [size for size in SIZES if size <= largest]
    if len(sizes) < 2:
        raise InputError(f"--largest: {show_bytes(largest)}; it must be at least {4 * SIZES[0]} B")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise InputError(f"measure: links are between processes; start several: {HOW}")
    if os.environ["WORLD_SIZE"] == "1":
        raise InputError(f"measure: 1 rank; links are between at least 2: {HOW}")
    with process_group(device) as place, ERR.status("connecting …") as status:

        def tell(first: int, second: int, left: int) -> None:
            status.update(f"ranks {first} and {second}, {left} pairs left …")

        axes: tuple[MeasuredAxis, ...] = ()
        if shape:
            status.update("collectives …")
            axes = measure_collectives(shape, sizes[1:], seconds)
        on_pair = tell if os.environ["RANK"] == "0" else None
        return measure(sizes, seconds, place, on_pair=on_pair), axes, place


def as_dict(
    measurement: Measurement,
    axes: tuple[MeasuredAxis, ...] = (),
    products: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the object for `--json`."""
    mesh = [
        {
            "devices": one.devices,
            "link": vars(one.link),
            "typical_error": one.common.typical_error,
            "collectives": {name: _fit_dict(fit) for name, fit in one.fits.items()},
        }
        for one in axes
    ]
    return {
        **({"mesh": mesh} if axes else {}),
        **({"products": dict(products)} if products else {}),
        "backend": measurement.backend,
        "ranks": [vars(machine) for machine in measurement.ranks],
        "link": vars(measurement.link),
        "all_reduce": _fit_dict(measurement.ring),
        "pairs": [
            {"ranks": [pair.first, pair.second], **_fit_dict(pair.fit)}
            for pair in measurement.pairs
        ],
        "warnings": measurement.warnings,
    }


def _fit_dict(fit: Fit) -> dict[str, Any]:
    return {
        **vars(fit.link),
        "typical_error": fit.typical_error,
        "worst_error": fit.worst_error,
        "size_bytes": fit.size_bytes.tolist(),
        "seconds": fit.seconds.tolist(),
        "model_s": fit.model_s.tolist(),
    }


def _print(measurement: Measurement) -> None:
    title = f"{show_count(len(measurement.ranks), 'rank')} over {measurement.backend}"
    table = new_table(title, "", _TITLES)
    listed = sorted(measurement.pairs, key=lambda pair: pair.fit.link.bytes_per_s)[:MOST_LISTED]
    for pair in sorted(listed, key=lambda pair: (pair.first, pair.second)):
        table.add_row(f"ranks {pair.first}–{pair.second}", *_cells(pair.fit))
    if len(listed) < len(measurement.pairs):
        more = len(measurement.pairs) - len(listed)
        table.add_row(f"{more} faster pairs", "", "", "", "")
    table.add_row("all-reduce, as a ring", *_cells(measurement.ring))
    OUT.print(table)
    link = measurement.link
    OUT.print_line(
        f"typical link: {1e6 * link.latency_s:.1f} µs, {link.bytes_per_s / 1e9:.3g} GB/s; "
        f"the fastest pair has {measurement.spread:.2f} times the bandwidth of the slowest"
    )
    ring = measurement.ring.link
    OUT.print_line(
        "all-reduce of replicas: stagecut simulate … "
        f"--bandwidth {ring.bytes_per_s / 1e9:.3g}GB/s --latency {ring.latency_s:.3g}"
    )
    for line in measurement.warnings:
        OUT.print_line(f"warning: {line}", style="yellow")


def _print_axes(axes: tuple[MeasuredAxis, ...]) -> None:
    """Print the links of collectives, each round of which counts as a message."""
    mesh = "x".join(str(one.devices) for one in axes)
    table = new_table(f"collectives on {mesh} ranks", "", ("axis", *_TITLES))
    for axis, one in enumerate(axes):
        for name, fit in one.fits.items():
            table.add_row(name, str(axis), *_cells(fit))
        table.add_row("all by one link", str(axis), *_cells(one.common))
    OUT.print(table)
    links = ",".join(show_link(one.link) for one in axes)
    each = ",".join(
        "+".join(
            [show_link(one.link)]
            + [f"{name}={show_link(fit.link)}" for name, fit in one.fits.items()]
        )
        for one in axes
    )
    for what, text in (("shardings", links), ("by each collective's own link", each)):
        OUT.print_line(f"{what}: stagecut solve … --mesh {mesh}@{text}")


def _cells(fit: Fit) -> tuple[str, str, str, str]:
    return (
        f"{1e6 * fit.link.latency_s:.1f} µs",
        f"{fit.link.bytes_per_s / 1e9:.3g} GB/s",
        show_percent(fit.typical_error),
        show_percent(fit.worst_error),
    )
