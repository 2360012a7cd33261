"""The shipped recipes, from files of published runs: python benchmarks/recipes.py FILE… -o OUT

FILE is as in `published_runs.py`. Of NVIDIA's runs (source ``bridge``) that the costs can express,
the fastest for each model, device, number of devices and precision is taken.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from published_rows import cases, read_rows
from published_runs import ADDED, Judged, judge

from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.layout import RECIPES, Layout, Overlap, Recipe, check_layout
from stagecut.instances.job.usual_layouts import NONE


def fastest(judged: Iterable[Judged]) -> list[Judged]:
    """Return the fastest run of each model, device, number of devices and precision."""
    best: dict[tuple[object, ...], Judged] = {}
    for one in judged:
        case = one.case
        if case.seconds is None:
            continue
        what = (case.description.name, case.row["gpu"].lower(), case.layout.devices)
        key = (*what, case.layout.recipe.compute)
        known = best.get(key)
        if known is None or known.case.seconds is None or case.seconds < known.case.seconds:
            best[key] = one
    return [best[key] for key in sorted(best)]


def row(one: Judged) -> dict[str, str]:
    """Return a run's row."""
    case, devices = one.case, one.case.layout.devices
    widest = min(int(float(case.row["gpus_per_node"] or 8)), devices)
    # Of racks of 72, jobs use as many devices as divide theirs.
    node = max(d for d in range(1, widest + 1) if devices % d == 0)
    cluster = f"{case.row['gpu'].lower()}:{node}x{devices // node}"
    check_layout(case.description, case.layout, training_cluster(cluster))
    return {
        "model": case.description.name,
        "mtp": str(len(case.description.mtp)),
        "cluster": cluster,
        "seconds": f"{case.seconds:.4g}",
        **row_of(case.layout),
        "source": case.row["source"],
    }


def row_of(layout: Layout) -> dict[str, str]:
    """Return the columns of a layout that differ from the defaults."""
    default = Layout()
    names = (one.name for one in fields(Layout))
    return {n: _text(n, layout) for n in names if getattr(layout, n) != getattr(default, n)}


def _text(key: str, layout: Layout) -> str:
    value = getattr(layout, key)
    if isinstance(value, Recipe):
        usual = RECIPES[value.name]
        given = [one.name for one in fields(Recipe)]
        changed = [n for n in given if getattr(value, n) != getattr(usual, n)]
        return " ".join([value.name, *(f"{n}={getattr(value, n):g}" for n in changed)])
    if isinstance(value, Overlap):
        names = (one.name for one in fields(Overlap))
        return " ".join(n for n in names if getattr(value, n)) or NONE
    if key == "stage_layers":
        runs: list[list[int]] = []
        for count in value:
            if not runs or runs[-1][0] != count:
                runs.append([count, 0])
            runs[-1][1] += 1
        return " ".join(f"{count}x{times}" if times > 1 else str(count) for count, times in runs)
    if isinstance(value, frozenset):
        return " ".join(sorted(value)) or NONE
    return str(int(value)) if isinstance(value, bool) else str(value)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    runs, _ = cases(read_rows(options.files, [ADDED]))
    judged, _ = judge([case for case in runs if case.source == "bridge"])
    rows = [row(one) for one in fastest(judged)]
    given = [one.name for one in fields(Layout) if any(one.name in row for row in rows)]
    columns = ["model", "mtp", "cluster", "seconds", *given, "source"]
    with options.output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
