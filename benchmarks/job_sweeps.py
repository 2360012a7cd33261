"""Choices among measured layouts: python benchmarks/job_sweeps.py FILE… [--csv OUT]

FILE is as in `published_runs.py`. A sweep is a strict group: the same model, devices, tokens per
batch and precision, in at least `LEAST` layouts. Among its measured layouts, the one is taken that,
by the costs, fits and is fastest, as by a planner that may choose among these alone. Its regret is
its measured time over the fastest measured time, less one. A layout that ran several times counts
with its median time. If a layout is taken that ran out of memory, the regret is infinite. Beside
this stands the regret of running all layouts that the costs cannot separate: the first `MOST`
within `CLOSE`.

    --csv OUT    a row for each sweep: what is taken, what was best
    --features   the costs' error by degree, microbatch, schedule, recomputation and ZeRO stage,
                 between layouts of a sweep in which everything else is alike
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from published_rows import cases, read_rows
from published_runs import ADDED, Judged, judge, table
from results import origin

from stagecut.instances.costs.layout import Layout

#: Fewest layouts of a sweep.
LEAST = 3
#: What is close to the fastest predicted, as in a plan's `close`, and how many of them are run.
CLOSE, MOST = 0.05, 3
#: What of a layout is held against the costs' error.
FEATURES: dict[str, Callable[[Layout], object]] = {
    "tensor": lambda layout: layout.tensor,
    "microbatch": lambda layout: layout.microbatch,
    "pipeline": lambda layout: layout.pipeline,
    "schedule": lambda layout: f"{layout.schedule} {layout.chunks}",
    "context": lambda layout: layout.context,
    "expert": lambda layout: layout.expert,
    "zero": lambda layout: layout.zero,
    "recompute": lambda layout: "+".join(sorted(layout.recompute)) or "none",
    "recipe": lambda layout: " ".join(f"{value}" for value in vars(layout.recipe).values()),
    "graphs": lambda layout: (layout.graphs, layout.compiled),
    "dispatcher": lambda layout: layout.dispatcher,
}


@dataclass(frozen=True)
class Measured:
    """A layout of a sweep: one of its runs, and the median seconds of all; infinite if none ran."""

    run: Judged
    seconds: float

    @property
    def layout(self) -> Layout:
        """How the job was divided."""
        return self.run.case.layout

    @property
    def error(self) -> float:
        """Logarithm of predicted over measured time."""
        return math.log(self.run.time.seconds / self.seconds)


@dataclass(frozen=True)
class Sweep:
    """A strict group, by layout."""

    name: str
    source: str
    layouts: tuple[Measured, ...]

    @property
    def close(self) -> list[Measured]:
        """What the costs cannot separate from the fastest that they say to fit, that one first."""
        fits = [one for one in self.layouts if one.run.fits] or list(self.layouts)
        fits.sort(key=lambda one: one.run.time.seconds)
        most = (1 + CLOSE) * fits[0].run.time.seconds
        return [one for one in fits[:MOST] if one.run.time.seconds <= most]

    @property
    def taken(self) -> Measured:
        """What the costs choose: the fastest that they say to fit, or the fastest if none does."""
        return self.close[0]

    @property
    def best(self) -> Measured:
        """What was fastest."""
        return min(self.layouts, key=lambda one: one.seconds)

    @property
    def regret(self) -> float:
        """Measured time of what is taken over the fastest measured, less one."""
        return self.taken.seconds / self.best.seconds - 1

    @property
    def close_regret(self) -> float:
        """The same of the fastest measured of what is close."""
        return min(one.seconds for one in self.close) / self.best.seconds - 1

    @property
    def spread(self) -> float:
        """Slowest over fastest of those that ran."""
        return max(s.seconds for s in self.layouts if s.seconds < math.inf) / self.best.seconds


def sweeps(judged: Iterable[Judged]) -> list[Sweep]:
    """Return the sweeps of at least `LEAST` layouts, at least two of which ran."""
    alike: dict[tuple[object, ...], dict[Layout, list[Judged]]] = defaultdict(dict)
    for one in judged:
        if one.case.seconds is not None or one.case.oom:
            alike[one.case.group].setdefault(one.case.layout, []).append(one)
    found = []
    for members in alike.values():
        layouts = []
        for runs in members.values():
            times = [one.case.seconds for one in runs if one.case.seconds is not None]
            layouts.append(Measured(runs[0], statistics.median(times) if times else math.inf))
        if len(layouts) < LEAST or sum(one.seconds < math.inf for one in layouts) < 2:
            continue
        case = layouts[0].run.case
        batch = f"{case.layout.global_batch * case.layout.sequence / 2**20:.3g} Mi tokens"
        name = f"{case.row['sweep']}, {case.layout.devices} {case.row['gpu']}, {batch}"
        found.append(Sweep(name, case.source, tuple(layouts)))
    return sorted(found, key=lambda sweep: sweep.name)


def in_short(layout: Layout) -> str:
    """Return what a layout differs from others by, in one line."""
    words = {
        "t": layout.tensor, "c": layout.context, "p": layout.pipeline, "v": layout.chunks,
        "d": layout.data, "e": layout.expert, "b": layout.microbatch,
    }  # fmt: skip
    degrees = " ".join(f"{name}{count}" for name, count in words.items() if count > 1)
    modules = "+".join(sorted(layout.recompute)) or "none"
    parallel = " sp" if layout.sequence_parallel else ""
    return f"{degrees or 'd1'}{parallel} zero{layout.zero} recompute {modules}"


def by_source(found: Sequence[Sweep]) -> str:
    """Return the regrets by source, as Markdown."""
    rows = []
    for source in (*sorted({sweep.source for sweep in found}), "all"):
        own = [sweep for sweep in found if source in (sweep.source, "all")]
        regrets = sorted(sweep.regret for sweep in own)
        rows.append(
            (source, len(own), sum(len(sweep.layouts) for sweep in own),
             f"{statistics.median(sweep.spread for sweep in own):.2f}",
             f"{statistics.median(regrets):.1%}", f"{regrets[-1]:.1%}",
             sum(regret <= 0.03 for regret in regrets), sum(regret > 0.1 for regret in regrets),
             f"{max(sweep.close_regret for sweep in own):.1%}",
             sum(sweep.close_regret > 0.1 for sweep in own))
        )  # fmt: skip
    header = ("source", "sweeps", "layouts", "slowest/fastest", "median regret", "most",
              "within 3 %", "above 10 %", "most of three", "of three above 10 %")  # fmt: skip
    return table(header, rows)


def by_feature(found: Sequence[Sweep]) -> str:
    """Return by source and feature how far the costs' errors lie from those of other values.

    A pair are two layouts of a sweep that differ in one feature (and in replicas, which make up for
    degrees); its error is how much more the costs say of the one than of the other, over what was
    measured.
    """
    pairs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for sweep in found:
        ran = [one for one in sweep.layouts if one.seconds < math.inf]
        for one in ran:
            for other in ran:
                differ = [
                    name for name, of in FEATURES.items() if of(one.layout) != of(other.layout)
                ]
                if len(differ) == 1:
                    of = FEATURES[differ[0]]
                    if str(of(one.layout)) < str(of(other.layout)):
                        key = (sweep.source, differ[0], f"{of(one.layout)} → {of(other.layout)}")
                        pairs[key].append(other.error - one.error)
    rows = (
        (*key, len(errors), f"{math.expm1(statistics.median(errors)):+.1%}",
         f"{math.expm1(max(errors, key=abs)):+.1%}")
        for key, errors in sorted(pairs.items())
    )  # fmt: skip
    return table(("source", "feature", "from → to", "pairs", "median error", "largest"), rows)


def write(path: Path, found: Sequence[Sweep]) -> None:
    """Write a row for each sweep."""
    rows = [
        {
            "sweep": sweep.name,
            "layouts": len(sweep.layouts),
            "spread": f"{sweep.spread:.4g}",
            "taken": in_short(sweep.taken.layout),
            "taken_predicted_s": f"{sweep.taken.run.time.seconds:.4g}",
            "taken_measured_s": f"{sweep.taken.seconds:.4g}",
            "best": in_short(sweep.best.layout),
            "best_predicted_s": f"{sweep.best.run.time.seconds:.4g}",
            "best_measured_s": f"{sweep.best.seconds:.4g}",
            "regret": f"{sweep.regret:.4f}",
            "close": len(sweep.close),
            "close_regret": f"{sweep.close_regret:.4f}",
        }
        | origin("")
        for sweep in found
    ]
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Choose in each sweep, and print the regrets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--features", action="store_true")
    options = parser.parse_args()
    runs, _ = cases(read_rows(options.files, [ADDED]))
    judged, _ = judge(runs)
    found = sweeps(judged)
    print(by_source(found))
    for sweep in found:
        print(
            f"{sweep.regret:8.1%} {len(sweep.layouts):3} {sweep.spread:5.2f} {sweep.name}: "
            f"{in_short(sweep.taken.layout)} for {in_short(sweep.best.layout)}"
        )
    if options.features:
        print(by_feature(found))
    if options.csv:
        write(options.csv, found)


if __name__ == "__main__":
    main()
