"""Piper's figures and tables (NeurIPS 2021) with exact plans: over k, over s, networks, figure 4.

    python benchmarks/piper_figures.py ../shared/benchmarks/piper --part devices --part replicas
    python benchmarks/piper_figures.py INPUTS_OF_THE_AUTHORS --part networks --part correlation

Each part replaces its table `results/piper_PART.csv`; those over k and s are also drawn into docs/.
The settings are those of the authors' program: 25 GiB/s, batches of 1,920 microbatches.
`correlation` plans equal stages of fixed (d, t, stages), as in figure 4. The measured axis of that
figure is not published as numbers. Here it is the makespan of a batch under 1F1B in the simulator,
which includes the fill and drain of the pipeline; the paper's model leaves these out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from results import Row, read, write
from training import GIB, timed

from stagecut import PipelineJob, Workload, accelerators_and_cpus, load, simulate
from stagecut.formulations.job.stream import state_staging
from stagecut.formulations.task import pose
from stagecut.runtime.pictures.style import MARKERS, line_of, names_as_they_are, save_picture
from stagecut.solvers.core.lattice import list_ideals
from stagecut.solvers.job.stream.dp import CLOSE, Planner

DOCS = Path(__file__).parent.parent / "docs"
#: What the figures switch off, by the authors' words for it, and the method that plans.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Piper": ("dp", {}),
    "no DP": ("dp", {"replicas": (1,)}),
    "no TP": ("dp", {"degrees": (1,)}),
    "no AR": ("dp", {"recomputation": "off"}),
    "equi no TP": ("equal-stages", {"degrees": (1,)}),
    "equi": ("equal-stages", {}),
}
DEVICES, MEMORIES = (8, 32, 64, 128, 512, 1024, 2048), (1, 2, 8, 80)
#: Σ d_i, the second axis of the authors' program, up to the microbatches of a batch.
REPLICAS, MOST_DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024, 1920), 2048
#: Of the authors' tables: devices and GiB.
RESNET = ((8, 4), (8, 8), (16, 1.5), (16, 2), (16, 4), (16, 8), (32, 1.5), (32, 2), (32, 4),
          (64, 1), (64, 1.5), (64, 2), (64, 4), (128, 1), (128, 2), (128, 4))  # fmt: skip
GNMT = ((2, 2.5), (2, 3.5), (4, 1.2), (4, 2.5), (8, 0.6), (8, 1.2), (8, 2.4), (16, 0.3), (16, 0.6),
        (16, 1.2), (32, 0.3), (32, 0.8), (64, 0.3))  # fmt: skip
#: Figure 4: replicas, tensor degree and stages on 64 devices, for both batches.
FIXED = ((32, 1, 2), (16, 1, 4), (8, 1, 8), (4, 1, 16), (2, 1, 32),
         (32, 2, 1), (16, 4, 1), (8, 8, 1))  # fmt: skip


def job(**options: Any) -> PipelineJob:
    """Return the problem of the paper."""
    return PipelineJob(**{"bandwidth": 25 * GIB} | options)


def digits(value: float | None) -> str:
    """Return six digits, or nothing where there is no plan."""
    return "" if value is None else f"{value:.6g}"


def devices(folder: Path) -> Iterable[Row]:
    """Yield the time per sample over devices and memories, for each variant."""
    workload = load(folder / "bert32a100.json")
    for memory in MEMORIES:
        for count in DEVICES:
            for variant, (method, switches) in VARIANTS.items():
                found, used = timed(
                    workload, count, memory * GIB, job(**switches), method, seconds=120
                )
                yield {
                    "memory_gib": str(memory),
                    "devices": str(count),
                    "variant": variant,
                    "seconds_per_sample": digits(found.objective),
                    "proved": str(found.status in ("optimal", "infeasible")).lower(),
                    "cpu_seconds": f"{used:.2f}",
                }


def replicas(folder: Path) -> Iterable[Row]:
    """Yield the time per sample where Σ d_i is bounded, on 2,048 devices, for each variant."""
    workload = load(folder / "bert32a100.json")
    for memory in MEMORIES:
        for variant, (method, switches) in VARIANTS.items():
            if method == "dp":
                for bound, value in bounded(workload, memory * GIB, job(**switches)):
                    yield {
                        "memory_gib": str(memory),
                        "most_replicas": str(bound),
                        "variant": variant,
                        "seconds_per_sample": digits(value),
                    }


def bounded(
    workload: Workload, memory: float, problem: PipelineJob
) -> Iterable[tuple[int, float | None]]:
    """Yield bounds of Σ d_i, each with the least time of a plan that keeps it, to 1e-6."""
    from stagecut.api.common import Judge
    from stagecut.solvers import Limits, Search

    cluster = accelerators_and_cpus(MOST_DEVICES, 0, memory)
    task = pose(workload, cluster, problem)
    staging = state_staging(task)
    search = Search(Limits(), Judge(workload, cluster, problem))
    lattice = list_ideals(np.arange(staging.size), staging.edges[:, ::-1], 10**6, search)
    most = np.inf
    for bound in REPLICAS:
        asked = replace(staging, most_replicas=min(bound, staging.most_replicas))
        planner = Planner(task, asked, lattice, greedy=False)
        chosen = planner.plan(most, search)
        if not chosen:
            yield bound, None if most == np.inf else most
            continue
        low, high = 0.0, max(planner.configured(chosen)[1])
        while high > low * (1 + 1e3 * CLOSE):
            middle = (low + high) / 2
            tried = planner.plan(middle, search)
            if tried:
                high = max(planner.configured(tried)[1])
            else:
                low = middle
        most = high
        yield bound, high


def networks(folder: Path) -> Iterable[Row]:
    """Yield the authors' tables of ResNet and GNMT: exact plans against equal stages."""
    for name, cases in (("resnet", RESNET), ("gnmt", GNMT)):
        workload = load(folder / f"{name}.json")
        for count, memory in cases:
            ours, used = timed(workload, count, memory * GIB, job(), "dp", seconds=300)
            equal, _ = timed(workload, count, memory * GIB, job(), "equal-stages", seconds=30)
            yield {
                "network": name,
                "devices": str(count),
                "memory_gib": f"{memory:g}",
                "exact": digits(ours.objective),
                "gap_percent": "" if ours.gap is None else f"{100 * ours.gap:.3f}",
                "equal_stages": digits(equal.objective),
                "cpu_seconds": f"{used:.1f}",
            }


def correlation(folder: Path) -> Iterable[Row]:
    """Yield predicted and simulated time of equal stages of fixed degrees, as figure 4 has them."""
    workload = load(folder / "bert32a100.json")
    for batch in (128, 512):
        for copies, degree, stages in FIXED:
            problem = job(
                microbatches=batch, schedule="stream", bandwidth=162.5 * GIB,
                replicas=(copies,), degrees=(degree,), recomputation="forced",
            )  # fmt: skip
            found, _ = timed(workload, 64, 80 * GIB, problem, f"equal-stages:stages={stages}")
            assert found.plan is not None
            run = simulate(workload, found.plan, schedule="1f1b", microbatches=batch)
            yield {
                "batch": str(batch),
                "replicas": str(copies),
                "degree": str(degree),
                "stages": str(stages),
                "predicted": digits(found.objective),
                "simulated_per_microbatch": digits(run.makespan / batch),
            }


def coefficients(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the correlation of predicted and simulated times, and that of their ranks."""
    pairs = np.array(
        [[float(row["predicted"]), float(row["simulated_per_microbatch"])] for row in rows]
    )
    ranks = pairs.argsort(axis=0).argsort(axis=0)
    return float(np.corrcoef(pairs.T)[0, 1]), float(np.corrcoef(ranks.T)[0, 1])


@names_as_they_are
def draw(name: str, across: str, label: str) -> None:
    """Draw each variant's part of Piper's throughput over devices or replicas, as the paper."""
    rows = read(name)
    piper = {
        (row["memory_gib"], row[across]): float(row["seconds_per_sample"])
        for row in rows
        if row["variant"] == "Piper" and row["seconds_per_sample"]
    }
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    for axes, memory in zip(figure.subplots(2, 2).flat, MEMORIES, strict=True):
        for number, variant in enumerate(VARIANTS):
            own = [
                (
                    int(row[across]),
                    piper[row["memory_gib"], row[across]] / float(row["seconds_per_sample"]),
                )
                for row in rows
                if row["memory_gib"] == str(memory)
                and row["variant"] == variant
                and row["seconds_per_sample"]
            ]
            if own:
                colour, style = line_of(number)
                axes.semilogx(*zip(*own, strict=True), style, color=colour, label=variant,
                            marker=MARKERS[number], markersize=4)  # fmt: skip
        axes.set_title(f"{memory} GiB per device", fontsize=10)
        axes.set_xlabel(label)
        axes.set_ylabel("throughput / Piper's")
        axes.set_ylim(0, 1.05)
        axes.set_xticks(sorted({int(row[across]) for row in rows}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
        axes.tick_params(axis="x", labelrotation=45, labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    save_picture(figure, DOCS / f"{name}.png", dpi=110)


PARTS: dict[str, Callable[[Path], Iterable[Row]]] = {
    "devices": devices,
    "replicas": replicas,
    "networks": networks,
    "correlation": correlation,
}


def main() -> None:
    """Run the parts asked for, write their tables and draw them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with bert32a100.json, gnmt.json, resnet.json")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    options = parser.parse_args()
    for part in options.part or PARTS:
        rows = []
        for row in PARTS[part](options.folder):
            rows.append(row)
            print(part, *row.values(), flush=True)
        write(f"piper_{part}", rows, "")
    draw("piper_devices", "devices", "devices, k")
    draw("piper_replicas", "most_replicas", "replicas in all, s")


if __name__ == "__main__":
    main()
