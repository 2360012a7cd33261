"""Published training runs against the costs: python benchmarks/published_runs.py FILE…

Each FILE has a row per run: ``id, sweep, model``, the model's shape (``layers, hidden, heads,
kv_heads, ffn, vocab, experts, topk, moe_ffn``), ``seq, global_batch, micro_batch``, the hardware
(``gpu, gpus, gpus_per_node``), the layout (``tp, sp, pp, vpp, dp, cp, ep, zero, recompute,
precision, schedule, attention, overlap``), ``status`` (ok, oom) and the measurements (``iter_s``
or ``tokens_per_s_per_gpu``, ``peak_mem_gb``). Fields may be empty: `published_rows.py` says what is
then assumed. The part of ``sweep`` before the first colon is the source.

Prints Markdown by source and by strict group, which holds runs that differ only in layout (same
model, devices, tokens per batch and precision). Errors are those of predicted over measured time,
on rows to which no table of efficiencies was fitted. Rank correlation is Spearman's. The regret is
the measured time of the layout predicted to be fastest over the fastest measured time, less one.

    --csv OUT       every row with its prediction, or why it was refused
    --json OUT      the figures by source
    --pictures DIR  predicted against measured, and the regret by group
    --terms         what the strict groups say of each term: their figures without it
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from published_rows import Case, Refusal, cases, read_rows
from scipy.stats import spearmanr

from stagecut.instances import InputError
from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.layers import LayerPrices
from stagecut.instances.costs.layout import Layout, Software
from stagecut.instances.costs.memory import RankMemory, peak_memory
from stagecut.instances.costs.terms import TIME_TERMS
from stagecut.runtime.estimate import IterationTime, iteration_times

#: Columns that further facts about shared rows stand in, joined by id.
ADDED = Path(__file__).parent / "published_layouts.csv"
#: Fewest rows of a strict group whose order is judged, and slowest over fastest of those in which
#: the choice of a layout matters.
LEAST, SPREAD = 8, 1.3


@dataclass(frozen=True)
class Judged:
    """A run with what the costs say of it.

    Parameters
    ----------
    case
        The run.
    time
        Predicted.
    memory
        Predicted, of the fullest rank.
    fitted
        Whether a table of efficiencies was fitted on it.
    """

    case: Case
    time: IterationTime
    memory: RankMemory
    fitted: bool

    @property
    def ratio(self) -> float | None:
        """Predicted over measured time."""
        measured = self.case.seconds
        return None if measured is None else self.time.seconds / measured

    @property
    def peak_bytes(self) -> float:
        """Predicted peak, of what the source's figure counts."""
        return float(getattr(self.memory, self.case.peak_kind))

    @property
    def fits(self) -> bool:
        """Whether the predicted need is within the device's memory."""
        return self.memory.needed <= self.case.cluster.accelerator.memory_bytes


@dataclass(frozen=True)
class Group:
    """A strict group's figures: rows, slowest over fastest, rank correlation, regret."""

    name: str
    source: str
    rows: int
    spread: float
    spearman: float
    regret: float


def judge(runs: Sequence[Case]) -> tuple[list[Judged], list[Refusal]]:
    """Predict runs; those that the costs refuse come back with the reason."""
    judged: list[Judged] = []
    refused: list[Refusal] = []
    alike: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in runs:
        alike[case.description, case.cluster, case.layout.software].append(case)
    for (description, cluster, software), group in alike.items():
        table = calibration(cluster.accelerator.family, software)
        prices = LayerPrices(description, cluster, table)
        fitted = set(table.rows)
        for case in group:
            try:
                case = replace(case, layout=completed(case, prices))
                time = iteration_times([case.layout], prices)[0]
                memory = peak_memory(description, case.layout)
            except InputError as error:
                refused.append(Refusal(case.row, str(error)))
                continue
            known = f"{case.source}:{case.row.get('id', '')}" in fitted
            judged.append(Judged(case, time, memory, known))
    return judged, refused


def completed(case: Case, prices: LayerPrices) -> Layout:
    """Return a layout whose unstated size and number of microbatches and chunks are the best.

    Whoever published a run had chosen them; of those that fit the fastest is taken.
    """
    layout = case.layout
    local = layout.global_batch // layout.data
    sizes, chunks = [layout.microbatch], [layout.chunks]
    if layout.software is Software.TORCHTITAN:
        return layout  # whose defaults are known
    if any(one.startswith("microbatches") for one in case.assumed):
        sizes = [size for size in (1, 2, 4, 8) if local % size == 0]
    if any(one.endswith("chunks per pipeline rank") for one in case.assumed):
        per_rank = len(case.description.blocks) // layout.pipeline
        chunks = [count for count in range(2, per_rank + 1) if per_rank % count == 0]
    if len(sizes) * len(chunks) < 2:
        return layout
    choices = [
        replace(layout, microbatch=size, chunks=count, stage_layers=())
        for size in sizes
        for count in chunks
        if count == 1 or local // size % layout.pipeline == 0
    ]
    room = case.cluster.accelerator.memory_bytes
    fitting = [one for one in choices if peak_memory(case.description, one).held <= room]
    times = iteration_times(fitting, prices)
    return min(
        zip(times, fitting, strict=True), key=lambda one: one[0].seconds, default=(0, layout)
    )[1]


def groups(judged: Iterable[Judged], without: str = "") -> list[Group]:
    """Return the strict groups of at least `LEAST` measured rows.

    Parameters
    ----------
    without
        Term that is left out of the predicted times.
    """
    alike: dict[tuple[object, ...], list[Judged]] = defaultdict(list)
    for one in judged:
        if one.case.seconds is not None:
            alike[one.case.group].append(one)
    found = []
    for members in alike.values():
        if len(members) < LEAST:
            continue
        measured = np.array([one.case.seconds for one in members])
        predicted = np.array(
            [one.time.seconds - one.time.terms.get(without, 0.0) for one in members]
        )
        # An order is none where all are alike.
        alone = np.ptp(measured) == 0 or np.ptp(predicted) == 0
        rank = 0.0 if alone else float(spearmanr(measured, predicted).statistic)
        regret = float(measured[predicted.argmin()] / measured.min() - 1)
        first = members[0].case
        name = f"{first.row['sweep']}, {first.layout.devices} {first.row['gpu']}"
        spread = float(measured.max() / measured.min())
        found.append(Group(name, first.source, len(members), spread, rank, regret))
    return sorted(found, key=lambda group: group.name)


def figures(
    judged: Sequence[Judged], refused: Sequence[Refusal], found: Sequence[Group]
) -> dict[str, dict[str, float | int | None]]:
    """Return the figures of each source."""
    sources = sorted({one.case.source for one in judged} | {one.source for one in refused})
    result: dict[str, dict[str, float | int | None]] = {}
    for source in sources:
        own = [one for one in judged if one.case.source == source]
        errors = np.array(
            [abs(one.ratio - 1) for one in own if one.ratio is not None and not one.fitted]
        )
        ranks = np.array([group.spearman for group in found if group.source == source])
        regrets = np.array([group.regret for group in found if group.source == source])
        peaks = np.array(
            [
                abs(one.peak_bytes / one.case.peak_bytes - 1)
                for one in own
                if one.case.peak_bytes and not one.case.oom
            ]
        )
        right = np.array([one.fits != one.case.oom for one in own], dtype=float)
        result[source] = {
            "n": len(errors),
            "refused": sum(one.source == source for one in refused),
            "median_abs_error": _of(np.median, errors),
            "p90_abs_error": _of(_p90, errors),
            "spearman_median": _of(np.median, ranks),
            "spearman_min": _of(np.min, ranks),
            "regret_median": _of(np.median, regrets),
            "regret_max": _of(np.max, regrets),
            "memory_median_abs_error": _of(np.median, peaks),
            "fits_accuracy": _of(np.mean, right),
        }
    return result


def _p90(values: np.ndarray) -> float:
    return float(np.quantile(values, 0.9))


def _of(function: object, values: np.ndarray) -> float | None:
    return round(float(function(values)), 4) if len(values) else None  # type: ignore[operator]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def report(judged: Sequence[Judged], refused: Sequence[Refusal], found: Sequence[Group]) -> str:
    """Return the figures as Markdown."""
    by_source = figures(judged, refused, found)

    def percent(value: float | int | None) -> str:
        return "" if value is None else f"{100 * value:.1f} %"

    def plain(value: float | int | None) -> str:
        return "" if value is None else f"{value:.2f}"

    sources = table(
        ("source", "rows", "refused", "median error", "p90", "Spearman", "least", "regret",
         "most", "memory", "fits"),
        (
            (name, f["n"], f["refused"], percent(f["median_abs_error"]),
             percent(f["p90_abs_error"]), plain(f["spearman_median"]), plain(f["spearman_min"]),
             percent(f["regret_median"]), percent(f["regret_max"]),
             percent(f["memory_median_abs_error"]), percent(f["fits_accuracy"]))
            for name, f in by_source.items()
        ),
    )  # fmt: skip
    strict = table(
        ("strict group", "rows", "slowest/fastest", "Spearman", "regret"),
        (
            (g.name, g.rows, f"{g.spread:.2f}", f"{g.spearman:.2f}", percent(g.regret))
            for g in found
        ),
    )
    fits = table(
        ("", "ran", "out of memory"),
        (
            (name, *(sum(o.fits == yes and o.case.oom == oom for o in judged) for oom in (0, 1)))
            for name, yes in (("predicted to fit", True), ("predicted not to fit", False))
        ),
    )
    reasons: dict[tuple[str, str], int] = defaultdict(int)
    for one in refused:
        reasons[one.source, one.reason] += 1
    why = table(
        ("source", "rows", "refused because"),
        ((source, count, reason) for (source, reason), count in sorted(reasons.items())),
    )
    return "\n\n".join((sources, strict, fits, *((why,) if reasons else ())))


def without_terms(judged: Sequence[Judged]) -> str:
    """Return as Markdown how the strict groups' order and regret suffer without each term."""
    rows = []
    for term in ("", *TIME_TERMS):
        found = groups(judged, term)
        spread = [group for group in found if group.spread > SPREAD]
        if not spread:
            return f"No strict group of {LEAST} rows has a spread above {SPREAD}."
        share = [one.time.terms.get(term, 0.0) / one.time.seconds for one in judged]
        rows.append(
            (
                term or "nothing", f"{100 * np.mean(share):.1f} %" if term else "",
                f"{np.mean([group.spearman for group in spread]):.3f}",
                f"{min(group.spearman for group in spread):.2f}",
                f"{100 * np.mean([group.regret for group in spread]):.1f} %",
                f"{100 * max(group.regret for group in spread):.1f} %",
            )
        )  # fmt: skip
    header = ("without", "share of the time", "mean Spearman", "least", "mean regret", "most")
    return table(header, rows)


def write_rows(path: Path, judged: Sequence[Judged], refused: Sequence[Refusal]) -> None:
    """Write every row with its prediction, or why it was refused."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        terms = sorted({term for one in judged for term in one.time.terms})
        writer.writerow(
            ("id", "sweep", "measured_s", "predicted_s", "ratio", "measured_peak_gb",
             "predicted_peak_gb", "status", "fits", "fitted", *terms, "assumed", "refused")
        )  # fmt: skip
        for one in judged:
            case = one.case
            ratio, peak = one.ratio, case.peak_bytes
            writer.writerow(
                (case.row["id"], case.row["sweep"], case.seconds or "",
                 f"{one.time.seconds:.6g}", "" if ratio is None else f"{ratio:.4f}",
                 "" if peak is None else f"{peak / 2**30:.2f}", f"{one.peak_bytes / 2**30:.2f}",
                 case.row.get("status", ""), int(one.fits), int(one.fitted),
                 *(f"{one.time.terms.get(term, 0.0):.6g}" for term in terms),
                 "; ".join(case.assumed), "")
            )  # fmt: skip
        for refusal in refused:
            row = refusal.row
            empty = [""] * (8 + len(terms))
            writer.writerow((row.get("id", ""), row.get("sweep", ""), *empty, "", refusal.reason))


def draw(folder: Path, judged: Sequence[Judged], found: Sequence[Group]) -> None:
    """Draw predicted against measured time by source, and the regret of each strict group."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(7, 6))
    colours = plt.colormaps["tab20"].colors
    sources = sorted({one.case.source for one in judged})
    for k, source in enumerate(sources):
        own = [one for one in judged if one.case.source == source and one.ratio is not None]
        axes.scatter(
            [one.case.seconds for one in own],
            [one.time.seconds for one in own],
            s=8,
            color=colours[k % len(colours)],
            marker="o^sD"[k % 4],
            label=source,
        )
    ends = axes.get_xlim()
    axes.axline((1, 1), (2, 2), color="gray", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured, s", ylabel="predicted, s")
    axes.set_xlim(max(ends[0], 0.02), ends[1])
    axes.legend(fontsize=7)
    figure.savefig(folder / "published_times.png", dpi=150, bbox_inches="tight")
    figure, axes = plt.subplots(figsize=(7, 0.22 * len(found) + 1))
    axes.barh([group.name for group in found], [100 * group.regret for group in found])
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlabel("regret, %")
    figure.savefig(folder / "published_regret.png", dpi=150, bbox_inches="tight")


def main() -> None:
    """Judge the costs by files of published runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--terms", action="store_true")
    options = parser.parse_args()
    runs, refused = cases(read_rows(options.files, [ADDED]))
    judged, more = judge(runs)
    refused += more
    found = groups(judged)
    print(report(judged, refused, found))
    if options.terms:
        print("\n" + without_terms(judged))
    if options.csv:
        write_rows(options.csv, judged, refused)
    if options.json:
        text = json.dumps(figures(judged, refused, found), indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.pictures:
        draw(options.pictures, judged, found)


if __name__ == "__main__":
    main()
