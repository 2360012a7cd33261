"""What each part of the strategy for mappings is worth: what is lost when it is left out.

    python benchmarks/mapping_ablation.py --csv ablation.csv              run what the file lacks
    python benchmarks/mapping_ablation.py --csv ablation.csv --report     the table
    python benchmarks/mapping_ablation.py --csv whole.csv --parts         the whole strategy alone

Limits count CPU seconds of the process instead of the clock's, inside HiGHS too, so that other load
changes little; HiGHS gets no clock of its own. The whole strategy runs with three seeds of the
search, which says what is noise; a part is left out only in cells where the strategy reaches it.
Ties are not broken.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
from mapping import as_chain, warm_up

from stagecut import DeviceMapping, Limits, Workload, load
from stagecut.api.solve import solve_with
from stagecut.instances.topologies import topology
from stagecut.solvers.core import highs
from stagecut.solvers.mapping import auto, exact, search
from stagecut.solvers.mapping import tight_stages as tight_stages
from stagecut.solvers.mapping.annealing import targets
from stagecut.solvers.mapping.parameters import EARLY_ROUNDS, EXACT_ROUNDS
from stagecut.solvers.mapping.partition import balanced_partition

NETWORK = "semantic-fpn-operators-training"
Cell = tuple[str, int, int, str, str]
#: Topology, S, R, mode, and the collective or the objective.
CELLS: list[Cell] = [
    ("torus2d:16x16", 4, 64, "both", "ring"),
    ("torus3d:8x8x8", 16, 32, "allr", "ring"),
    ("random_blk_1:16", 4, 4, "both", "ring"),
    ("random_blk_1:64", 8, 8, "p2p", "ring"),
    ("random_blk_2:64", 16, 4, "p2p", "ring"),
    ("random_blk_2:256", 8, 32, "p2p", "ring"),
    ("random_blk_1:256", 8, 32, "allr", "ring"),
    ("random_blk_2:64", 8, 8, "allr", "ring"),
    ("random_blk_1:64", 4, 16, "both", "ring"),
    ("random_blk_1:64", 16, 4, "both", "ring"),
    ("random_blk_2:64", 8, 8, "both", "ring"),
    ("random_blk_1:256", 8, 32, "both", "ring"),
    ("random_blk_2:256", 16, 16, "both", "ring"),
    ("uniform_dist:64", 8, 8, "both", "ring"),
    ("uniform_dist:256", 4, 64, "both", "ring"),
    ("random_blk_2:16", 4, 4, "both", "cheapest"),
    ("random_blk_2:64", 8, 8, "both", "cheapest"),
    ("fattree:4", 2, 8, "both", "cheapest"),
    ("islands:4x8", 4, 8, "both", "busiest-link"),
]
COLUMNS = ["cell", "part", "seed", "seconds", "objective", "bound", "gap", "proven", "reached"]
WHOLE = "whole strategy"


@dataclass(frozen=True)
class Part:
    """A part of the strategy: a function, what stands in for it, and the one that shows its use."""

    module: object
    name: str
    instead: Callable[..., object]
    entry: tuple[object, str] | None = None
    #: Of the calls of the entry, those that are of this part.
    counts: Callable[..., bool] = lambda *_, **__: True


def nothing(*_args: object, **_options: object) -> None:
    """Do nothing."""


def none_of(*_args: object, **_options: object) -> Iterator[object]:
    """Yield nothing."""
    yield from ()


def start(name: str) -> Part:
    """A start strategy, by the function that runs it."""
    every = targets.start_strategies

    def others(mapping: search.MappingSearch) -> list[targets.StartStrategy]:
        return [each for each in every(mapping) if each.run.__name__ != name]

    entry = "_from_count_model" if name == "from_count_model" else name
    return Part(targets, "start_strategies", others, (targets, entry))


def rounds(wanted: int) -> Part:
    """A call of the annealing, by how many turns it takes."""
    every = targets.anneal

    def others(mapping: search.MappingSearch, starts: object, rounds: int | None = None) -> None:
        if rounds != wanted:
            every(mapping, starts, rounds)  # type: ignore[arg-type]

    return Part(targets, "anneal", others, counts=lambda *_, rounds=None: rounds == wanted)


def no_trees(costs: search.MappingCosts, _s: int) -> np.ndarray:
    """Tables of trees that are never the cheapest."""
    return np.full(1 << costs.size, np.inf)


def orders_as_they_are(
    _costs: object, slots: np.ndarray, sends_to: np.ndarray, *_: object, **__: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mapping."""
    return slots, sends_to


def of_one_kind(mapping: search.MappingSearch, kind: str) -> bool:
    """Whether the mapping has messages of one kind alone, and blocks to look for."""
    one, other = mapping.costs.ring, mapping.costs.boundary
    if kind == "messages":
        one, other = other, one
    return bool(one.any() and not other.any())


def parts() -> dict[str, Part]:
    """All parts, by what the table calls them."""
    return {
        "layouts": Part(search, "layouts", none_of),
        "segments": Part(search.MappingSearch, "bound_segments", nothing),
        "thresholds": Part(search.MappingSearch, "bound_thresholds", nothing),
        "counts (bound)": Part(search, "count_test", lambda *_: lambda *_: True),
        "rings": Part(
            tight_stages, "rings_first", nothing, counts=lambda m: of_one_kind(m, "rings")
        ),
        "messages": Part(
            tight_stages, "messages_first", nothing, counts=lambda m: of_one_kind(m, "messages")
        ),
        "messages and rings": Part(tight_stages, "both", nothing, (tight_stages, "BothTest")),
        "exact": Part(auto, "_exact", nothing),
        "exact trees": Part(exact, "tree_times", no_trees),
        "annealing before bounds": rounds(EARLY_ROUNDS),
        "annealing before exact": rounds(EXACT_ROUNDS),
        "start: count model": start("from_count_model"),
        "start: on from the last": start("_continue"),
        "start: incumbent": start("_from_incumbent"),
        "packed segments": Part(search.SegmentTest, "pack", nothing),
        "weights of counts": Part(targets, "update_weights", nothing),
        "descents": Part(targets, "_descent", nothing),
        "descents of orders": Part(search, "descend", orders_as_they_are),
    }


def solved(cell: Cell, workload: Workload, seconds: float, seed: int) -> dict[str, object]:
    """Solve a cell."""
    text, s, r, mode, kind = cell
    if text.startswith(("random", "uniform")):
        text += "@seed=0"
    begin = time.monotonic()
    problem = DeviceMapping(
        topology(text),
        s,
        r,
        mode,  # type: ignore[arg-type]
        gradients=False,
        collective="cheapest" if kind == "cheapest" else "ring",
        objective="busiest-link" if kind == "busiest-link" else "stage-time",
    )
    limits = Limits(seconds=seconds, seed=seed, gap=0.0)
    result = solve_with(workload, problem=problem, limits=limits, started=begin)
    assert result.plan is not None
    return {
        "seconds": next((p.seconds for p in result.trace if p.gap <= 1e-6), result.seconds),
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.plan.gap,
        "proven": result.status == "optimal",
    }


def name_of(cell: Cell) -> str:
    """The cell as the table names it."""
    text, s, r, mode, kind = cell
    return f"{text} {s} × {r} {mode}" + ("" if kind == "ring" else f", {kind}")


def counted(stack: ExitStack, part: Part) -> list[int]:
    """Count the calls of a part while the stack is open."""
    calls: list[int] = []
    module, name = part.entry or (part.module, part.name)
    original = getattr(module, name)

    def counting(*args: object, **options: object) -> object:
        if part.counts(*args, **options):
            calls.append(1)
        return original(*args, **options)

    counting.__name__ = name
    stack.enter_context(patch.object(module, name, counting))
    return calls


def run(args: argparse.Namespace) -> None:
    """Run what the file does not have."""
    every = parts()
    known = pd.read_csv(args.csv) if args.csv.exists() else pd.DataFrame(columns=COLUMNS)
    done = {tuple(row) for row in known[["cell", "part", "seed"]].itertuples(index=False)}
    reached = {
        row.cell: str(row.reached).split("; ")
        for row in known[known["part"].eq(WHOLE) & known["seed"].eq(0)].itertuples()
    }
    network = load(NETWORK)
    chains = {s: as_chain(balanced_partition(network, s, 0.0).costs) for s in {c[1] for c in CELLS}}
    cells = [cell for cell in CELLS if args.only in name_of(cell)]
    with args.csv.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not known.size and file.tell() == 0:
            writer.writeheader()

        def measure(cell: Cell, part: str, seed: int) -> None:
            if (name_of(cell), part, seed) in done:
                return
            with ExitStack() as stack:
                calls = {}
                if part in every:
                    left = every[part]
                    stack.enter_context(patch.object(left.module, left.name, left.instead))
                elif seed == 0:
                    calls = {name: counted(stack, each) for name, each in every.items()}
                found = solved(cell, chains[cell[1]], args.seconds, seed)
            seen = [name for name, times in calls.items() if times]
            row = {"cell": name_of(cell), "part": part, "seed": seed, **found}
            writer.writerow({**row, "reached": "; ".join(seen)})
            file.flush()
            print(*row.values(), *seen, sep=", ", flush=True)
            if part == WHOLE and seed == 0:
                reached[name_of(cell)] = seen

        warm_up(chains[cells[0][1]], cells[0][1])
        for seed in range(args.seeds):
            for cell in cells:
                measure(cell, WHOLE, seed)
        for part in every if args.parts is None else args.parts:
            for cell in cells:
                if part in reached.get(name_of(cell), ()):
                    measure(cell, part, 0)


def without_clock(limits: Callable[..., None]) -> Callable[..., None]:
    """HiGHS's options without its time limit: the search asks it to stop."""

    def option(solver: object, name: str, value: object) -> None:
        if name != "time_limit":
            limits(solver, name, value)

    return option


def report(args: argparse.Namespace) -> str:
    """Return the table as markdown: gap in %, or CPU seconds until it is proven."""
    found = pd.read_csv(args.csv)
    names = [name_of(cell) for cell in CELLS if name_of(cell) in set(found["cell"])]
    lines = ["| cell | seed 0 | seeds 1, 2 | left out: what changes |", "|---|---|---|---|"]
    for name in names:
        rows = found[found["cell"].eq(name)]
        whole = rows[rows["part"].eq(WHOLE)].sort_values("seed")
        first = whole.iloc[0]
        worse, same = [], []
        for row in rows[~rows["part"].eq(WHOLE)].itertuples():
            text = f"{row.part} {_text(row)}"
            (same if _alike(row, whole) else worse).append(text if _text(row) else row.part)
        others = "; ".join(_text(row) for row in whole.iloc[1:].itertuples())
        told = "; ".join(worse) or "nothing"
        if same:
            told += ". No change: " + ", ".join(text.rsplit(" ", 2)[0] for text in same)
        lines.append(f"| {name} | {_text(first)} | {others} | {told} |")
    return "\n".join(lines)


def _text(row: object) -> str:
    if row.proven:  # type: ignore[attr-defined]
        return f"{row.seconds:.1f} s"  # type: ignore[attr-defined]
    return f"{100 * row.gap:.2g} %"  # type: ignore[attr-defined]


def _alike(row: object, whole: pd.DataFrame) -> bool:
    """Whether a run is no worse than the worst seed of the whole strategy, but for a fifth."""
    if whole["proven"].all():
        slowest = float(whole["seconds"].max())
        return bool(row.proven and row.seconds <= 1.2 * slowest + 0.2)  # type: ignore[attr-defined]
    return bool(row.gap <= 1.05 * float(whole["gap"].max()) + 1e-4)  # type: ignore[attr-defined]


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, default=Path("ablation.csv"))
    parser.add_argument("--seconds", type=float, default=8.0, help="CPU seconds of a run")
    parser.add_argument("--seeds", type=int, default=3, help="of the whole strategy")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--parts", nargs="*", help="to leave out; default: each in turn")
    parser.add_argument("--report", action="store_true", help="print the table")
    args = parser.parse_args()
    if args.report:
        print(report(args))
        return
    time.monotonic = time.process_time
    with (
        patch.object(highs, "_option", without_clock(highs._option)),
        patch.object(auto, "break_ties", nothing),
    ):
        run(args)


if __name__ == "__main__":
    main()
