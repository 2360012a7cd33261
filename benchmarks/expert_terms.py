"""Terms of mixtures of experts, each left out in turn: python benchmarks/expert_terms.py FILE…

For published runs of mixtures of experts, prints how good predictions are with all terms and
without each one: the medians of predicted over measured time and of its error, and the mean rank
correlation and regret over groups of runs that differ only in layout. The last table lists the
models and devices for which each term matters: how much faster predictions become without it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import published_runs
from published_rows import Case, cases, read_rows

from stagecut.instances.costs import layers
from stagecut.instances.costs.experts import Dispatched, Product

#: Fewest runs of a group whose order is judged; few groups of mixtures have eight.
LEAST = 3


def _nothing(*_: Any, **__: Any) -> float:
    return 0.0


def _sent_nowhere(*_: Any, **__: Any) -> Dispatched:
    return Dispatched(0.0, 0.0)


def _as_one(*arguments: Any, **options: Any) -> tuple[Product, ...]:
    """All experts' rows as one matrix product."""
    found = ALL["expert_products"](*arguments, **options)
    return tuple(Product(1, one.m * one.count, one.n, one.k) for one in found)


#: Names in `layers` and what stands there with all terms.
ALL = {name: getattr(layers, name) for name in (
    "permutation_bytes", "router_bytes", "dispatched", "expert_products", "ROUTER_LAUNCHES",
    "EXPERT_LAUNCHES",
)}  # fmt: skip
#: What stands there without a term.
WITHOUT: dict[str, dict[str, Any]] = {
    "all terms": {},
    "permutation": {"permutation_bytes": _nothing},
    "router": {"router_bytes": _nothing},
    "dispatch": {"dispatched": _sent_nowhere},
    "rows per expert": {"expert_products": _as_one},
    "launches": {"ROUTER_LAUNCHES": 0, "EXPERT_LAUNCHES": 0},
}


@contextmanager
def left_out(changes: dict[str, Any]) -> Iterator[None]:
    """Replace names in `layers`, and forget what was computed with others."""
    try:
        for name, value in changes.items():
            setattr(layers, name, value)
        forget()
        yield
    finally:
        for name, value in ALL.items():
            setattr(layers, name, value)
        forget()


def forget() -> None:
    """Empty the caches of all functions in `layers`."""
    for value in vars(layers).values():
        clear: Callable[[], None] | None = getattr(value, "cache_clear", None)
        if clear is not None:
            clear()


def ordered(judged: Sequence[Any]) -> tuple[float, float, int]:
    """Return mean rank correlation and regret over groups, and how many there are."""
    least = published_runs.LEAST
    published_runs.LEAST = LEAST
    try:
        found = [one for one in published_runs.groups(judged) if one.spread > 1.02]
    finally:
        published_runs.LEAST = least
    if not found:
        return float("nan"), float("nan"), 0
    known = [one.spearman for one in found if one.spearman == one.spearman]
    return (
        statistics.mean(known) if known else float("nan"),
        statistics.mean(one.regret for one in found),
        len(found),
    )


def mixtures(files: Sequence[Path]) -> list[Case]:
    """Return the measured runs of mixtures of experts."""
    runs, _ = cases(read_rows(files, [published_runs.ADDED]))
    return [
        run
        for run in runs
        if run.seconds and any(block.experts for block in run.description.blocks)
    ]


def _name(run: Case) -> tuple[str, str]:
    return run.source, run.row["id"]


def main(argv: list[str] | None = None) -> None:
    """Print the ablation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(argv)
    runs = mixtures(options.files)
    ratios: dict[str, dict[tuple[str, str], float]] = {}
    print(
        f"{'left out':18}{'rows':>5}{'ratio':>8}{'|error|':>9}{'rank':>7}{'regret':>8}{'groups':>7}"
    )
    for term, changes in WITHOUT.items():
        with left_out(changes):
            judged, _ = published_runs.judge(runs)
        ratios[term] = {_name(one.case): one.ratio for one in judged}
        values = list(ratios[term].values())
        rank, regret, count = ordered(judged)
        print(
            f"{term:18}{len(values):5}{statistics.median(values):8.2f}"
            f"{statistics.median(abs(v - 1) for v in values):9.1%}{rank:7.2f}{regret:8.1%}{count:7}"
        )
    kinds = sorted({(run.description.name, run.cluster.accelerator.family) for run in runs})
    terms = [term for term in WITHOUT if term != "all terms"]
    print(f"\n{'faster without':34}{'rows':>5}" + "".join(f"{term:>17}" for term in terms))
    for name, family in kinds:
        own = [
            _name(run)
            for run in runs
            if (run.description.name, run.cluster.accelerator.family) == (name, family)
        ]
        cells = "".join(
            f"{1 - statistics.median(ratios[t][i] / ratios['all terms'][i] for i in own):17.1%}"
            for t in terms
        )
        print(f"{name[:24]:24}{family:10}{len(own):5}{cells}")


if __name__ == "__main__":
    sys.exit(main())
