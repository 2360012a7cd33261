"""Training jobs beside one process: small models of four families under layouts of every axis.

    python benchmarks/job_layouts.py

Models and layouts are those of the tests (tests/support/execution). For each layout, the table says
how far ten losses and the first step's gradients are from those of one process, relative to these
(for a gradient, to its norm), and divides the bytes of the last step's collectives, on all ranks
and by axis, by the bytes that the plan counts. Then pairs of layouts run, of which the second
continues from the first one's checkpoint: are weights and moments those that were saved, to the
bit, and how far is the next loss off? Writes `results/job_layouts.csv` and
`results/job_resumed.csv`. Takes ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from results import write

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
sys.path[:0] = [str(SUPPORT / "execution"), str(SUPPORT)]

from job_cases import PAIRS, alone, resumed  # noqa: E402
from model_cases import MODELS, layouts_of, model_rank  # noqa: E402
from model_cases import alone as alone_of  # noqa: E402
from ranks import on_ranks  # noqa: E402

#: Least norm that errors are relative to: gradients of keys' biases are rounding alone.
FLOOR = 1e-4
#: What fields of a layout are called in the tables, in their order.
SHOWN = {
    "data": "data {}", "zero": "ZeRO {}", "tensor": "tensor {}", "sequence_parallel": "sequences",
    "context": "context {}", "context_kind": "{}", "pipeline": "pipeline {}", "chunks": "chunks {}",
    "expert": "experts {}", "schedule": "{}", "run_schedule": "{}", "stage_layers": "layers {}",
    "recompute": "recompute {}", "recompute_layers": "of layers {}",
}  # fmt: skip


def shown(fields: Mapping[str, Any]) -> str:
    """Return a layout in words."""
    return ", ".join(text.format(fields[name]) for name, text in SHOWN.items() if name in fields)


def compared(name: str, ranks: list[dict[str, Any]]) -> dict[str, str]:
    """Return the errors of a model under a layout, and its bytes by axis."""
    wanted = alone_of(name)
    losses = max(
        abs(found - exact) / exact
        for rank in ranks
        for found, exact in zip(rank["losses"], wanted["losses"], strict=True)
    )
    gradients = max(
        float((found - exact).norm() / exact.norm().clamp(min=FLOOR))
        for rank in ranks
        for key, found in rank["gradients"].items()
        for exact in (wanted["gradients"][key],)
    )
    planned: dict[str, float] = {}
    counted: dict[str, float] = {}
    for rank in ranks:
        for axis, size in rank["planned"].items():
            planned[axis] = planned.get(axis, 0.0) + size
            counted[axis] = counted.get(axis, 0.0) + rank["counted"].get(axis, 0.0)
    return {
        "loss_error": f"{losses:.1e}",
        "gradient_error": f"{gradients:.1e}",
        "planned_bytes": f"{sum(planned.values()):.0f}",
        "bytes_over_planned": "; ".join(f"{a} {counted[a] / planned[a]:.3f}" for a in planned),
    }


def layouts(name: str, world: int, word: str) -> list[dict[str, str]]:
    """Return a row for each layout with a word of a model on so many processes."""
    cases = [fields for fields in layouts_of(name, world) if word in shown(fields)]
    if not cases:
        return []
    ranks = on_ranks(world, model_rank, [(name, fields) for fields in cases])
    rows = []
    for number, fields in enumerate(cases):
        row = {"model": name, "processes": str(world), "layout": shown(fields)}
        rows.append(row | compared(name, [rank[number] for rank in ranks]))
        print(rows[-1], flush=True)
    return rows


def pairs() -> list[dict[str, str]]:
    """Return a row for each pair of layouts."""
    with tempfile.TemporaryDirectory() as folder:
        found = on_ranks(2, resumed, list(PAIRS.values()), folder)[0]
    rows = []
    for ((before, _), (after, options)), case in zip(PAIRS.values(), found, strict=True):
        exact = alone(*(options.get(key, False) for key in ("tied", "placed", "experts")))
        error = abs(case["losses"][0] - exact["losses"][1]) / exact["losses"][1]
        schedule = {"run_schedule": options["schedule"]} if "schedule" in options else {}
        rows.append(
            {
                "before": shown(before), "after": shown({**after, **schedule}),
                "state": "to the bit" if case["same"] else "other", "loss_error": f"{error:.1e}",
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Write the tables; rows of layouts replace those of the same ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("layouts", "resumed"), help="One of the tables.")
    parser.add_argument("--processes", type=int, nargs="+", default=(2, 4, 8))
    parser.add_argument("--word", default="", help="Only layouts with it in the table.")
    options = parser.parse_args()
    if options.only != "layouts":
        write("job_resumed", pairs(), "0")
    if options.only != "resumed":
        for world, name in product(options.processes, MODELS):
            rows = layouts(name, world, options.word)
            write("job_layouts", rows, "0", keys=("model", "processes", "layout"))


if __name__ == "__main__":
    main()
