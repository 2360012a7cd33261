"""Write the shipped recipes from files of published runs: python benchmarks/recipes.py FILE… -o OUT

FILE as in `published_runs.py`. Of NVIDIA's runs (source ``bridge``) that the costs can express, the
fastest of each model, device, number of devices and precision is taken.
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
from stagecut.instances.costs.layout import Layout, check_layout
from stagecut.instances.job.usual_layouts import row_of


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
        "further": str(len(case.description.mtp)),
        "cluster": cluster,
        "seconds": f"{case.seconds:.4g}",
        **row_of(case.layout),
        "source": case.row["source"],
    }


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
    columns = ["model", "further", "cluster", "seconds", *given, "source"]
    with options.output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
