"""Best contiguous max-load of every shipped workload on its own cluster, by the DP over ideals.

Prints `tests/instances/shipped_optima.csv`; redirect it there after a change of the cost model.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys

import stagecut
from stagecut.instances.generate.catalogue import CATALOGUE, build


def main() -> None:
    """Solve each entry and print a row of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per workload")
    parser.add_argument("names", nargs="*", help="default: all")
    options = parser.parse_args()
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(("name", "best_ms", "bound_ms"))
    for name in options.names or CATALOGUE:
        result = stagecut.solve(
            build(name),
            problem=stagecut.Throughput("contiguous"),
            method="dp",
            limits=stagecut.Limits(seconds=options.time_limit),
        )
        best = f"{result.plan.objective:.12g}" if result.plan else ""
        bound = f"{result.bound:.12g}" if math.isfinite(result.bound) else ""
        rows.writerow((name, best, bound))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
