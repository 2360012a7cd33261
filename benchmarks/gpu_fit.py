"""Table of efficiencies of this project's own runtime, from what `gpu_costs.py` measured on a GPU.

Every second row of `results/gpu_kernels.csv`, of `gpu_layouts.csv`, and of the dense models in
`gpu_ranks.csv` is fitted on; the other rows judge. Kernels give the share of the device's peak that
they reach, and count the more the longer they are. Whole iterations give how much longer they take
than their kernels, the host's time per kernel, and how much longer the host takes when it
recomputes. Passes divided over tensor ranks give the host's extra time per linear layer.
`fit_calibration.py` writes the table.

    python benchmarks/gpu_fit.py

prints the errors of the rows that judge, and the errors of iterations by tables that are fitted
without one of the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gpu_kernels
import gpu_layouts
import gpu_ranks
import numpy as np
import results
from scipy.optimize import least_squares

from stagecut.instances.costs.calibration import Calibration, calibration
from stagecut.instances.costs.clusters import accelerator

#: What kernels are fitted for.
KERNELS = (
    "kernels.product", "kernels.depth", "kernels.memory", "kernels.launch", "kernels.attention",
    "kernels.attention_backward", "optimizer",
)  # fmt: skip
#: Errors from which on a row counts less: where the device waits for the host, few are near.
HOST_BOUND = 0.3
#: What whole iterations are fitted for.
WHOLE_PASSES = ("passes", "host", "checkpointed", "selective")
#: What says nothing, of numbers that a table may be fitted without.
NEUTRAL = {"passes": 1.0, "checkpointed": 0.0, "selective": 1.0}
#: Microseconds from which on a kernel counts whole; shorter ones hang on the gaps between them.
WHOLE = 300.0


def changed(table: Calibration, names: Sequence[str], values: Sequence[float]) -> Calibration:
    """Return a table with these values of its parameters ``kernels.X``, ``links.X`` or ``X``."""
    inner: dict[str, dict[str, float]] = {"kernels": {}, "links": {}}
    own: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        group, _, field = name.rpartition(".")
        (inner[group] if group else own)[field] = float(value)
    return replace(
        table,
        kernels=replace(table.kernels, **inner["kernels"]),
        links=replace(table.links, **inner["links"]),
        **own,
    )


def value(table: Calibration, name: str) -> float:
    """Return a parameter of a table, named as in `changed`."""
    group, _, field = name.rpartition(".")
    return float(getattr(getattr(table, group) if group else table, field))


def dense(rows: Sequence[results.Row]) -> list[results.Row]:
    """Return the ranks of models without experts whose blocks no compiler fuses."""
    cases = ((row, gpu_ranks.case_of(row)) for row in rows)
    return [
        row
        for row, one in cases
        if not one.layout.compiled and one.description().blocks[0].experts is None
    ]


def fit(table: Calibration, without: str = "") -> Calibration:
    """Return a table fitted from the one given, the parameter `without` at its neutral value."""

    def best(
        table: Calibration,
        names: Sequence[str],
        errors: Callable[[Calibration], list[float]],
        outlying: float = 0.05,
    ) -> Calibration:
        def residuals(x: np.ndarray) -> np.ndarray:
            return np.array(errors(changed(table, names, np.exp(x))))

        begin = np.log([value(table, name) for name in names])
        found = least_squares(residuals, begin, loss="soft_l1", f_scale=outlying, diff_step=0.02)
        return changed(table, names, [float(f"{v:.3g}") for v in np.exp(found.x)])

    kernels, ranks = results.read("gpu_kernels")[::2], dense(results.read("gpu_ranks"))[::2]
    counts = np.sqrt([min(1.0, float(row["measured_us"]) / WHOLE) for row in kernels])
    table = best(table, KERNELS, lambda one: list(counts * kernel_errors(kernels, one)))
    layouts = trained(results.read("gpu_layouts"))[::2]
    table = replace(table, passes=1.1, host=3e-5, checkpointed=2e-3, selective=4.0)
    if without:
        table = changed(table, [without], [NEUTRAL[without]])
    named = [name for name in WHOLE_PASSES if name != without]
    divided = [row for row in ranks if gpu_ranks.case_of(row).layout.tensor > 1]
    alone = [row for row in ranks if row not in divided]
    table = best(
        table,
        named,
        lambda one: layout_errors(layouts, one) + rank_errors(alone, one),
        outlying=HOST_BOUND,
    )
    issued = [float(row["measured_issued_s"]) / float(row["measured_kernels"]) for row in alone]
    # ranks ran behind a profile, after which the host takes longer for every launch; most of them
    # wait for the device besides
    behind = replace(table, host=float(f"{min(issued):.3g}"), divided=1e-3)
    behind = best(behind, ("divided",), lambda one: rank_errors(divided, one))
    machines = sorted({row["machine"].partition(", ")[2] for row in (*kernels, *layouts)})
    return replace(
        table,
        divided=behind.divided,
        fitted=f"{len(kernels)} kernels, {len(ranks)} ranks of jobs and {len(layouts)} layouts of "
        f"whole models, measured on one {' and one '.join(machines)}: every second row of "
        "gpu_kernels.csv, gpu_ranks.csv and gpu_layouts.csv",
    )


def trained(rows: Sequence[results.Row]) -> list[results.Row]:
    """Return the layouts that fit into the memory."""
    return [row for row in rows if row["measured_s"]]


def layout_errors(rows: Sequence[results.Row], table: Calibration) -> list[float]:
    """Return the logarithms of predicted over measured seconds of iterations."""
    found = []
    for row in rows:
        chip = accelerator(row["machine"].partition(", ")[2])
        one = gpu_layouts.case_of(row)
        seconds = gpu_layouts.predicted(one, chip.name, table)["predicted_s"]
        found.append(float(np.log(seconds / float(row["measured_s"]))))
    return found


def kernel_errors(rows: Sequence[results.Row], table: Calibration) -> list[float]:
    """Return the logarithms of predicted over measured seconds of kernels."""
    found = []
    for row in rows:
        chip = accelerator(row["machine"].partition(", ")[2])
        one = gpu_kernels.parsed(row["what"], row["shape"])
        seconds = gpu_kernels.predicted(one, chip, table)
        found.append(float(np.log(1e6 * seconds / float(row["measured_us"]))))
    return found


def rank_errors(rows: Sequence[results.Row], table: Calibration) -> list[float]:
    """Return the logarithms of predicted over measured seconds of both passes of ranks."""
    found = []
    for row in rows:
        one = gpu_ranks.case_of(row)
        chip = accelerator(row["machine"].partition(", ")[2])
        said = gpu_ranks.predicted(one, one.description(), chip, table)
        found += [
            float(np.log(said[name] / float(row[f"measured_{name}"])))
            for name in ("forward_s", "backward_s")
        ]
    return found


def both_passes(row: results.Row) -> float:
    """Return the logarithm of predicted over measured seconds of a rank's passes together."""
    said, seen = (
        sum(float(row[f"{which}_{name}_s"]) for name in ("forward", "backward"))
        for which in ("predicted", "measured")
    )
    return float(np.log(said / seen))


def peak(row: results.Row) -> float:
    """Return the logarithm of predicted over measured peak memory."""
    return float(np.log(float(row["predicted_peak_gib"]) / float(row["measured_peak_gib"])))


def show(what: str, errors: Sequence[float]) -> None:
    """Print a row of the page: how many, their median error and that which 90 % are below."""
    off = 100 * np.abs(np.expm1(errors))
    print(f"| {what} | {len(off)} | {np.median(off):.1f} % | {np.quantile(off, 0.9):.1f} % |")


def main() -> None:
    """Print the errors of the rows that judge, and what each number of the host is for."""
    table = calibration("h100", "stagecut")
    kernels, layouts = results.read("gpu_kernels")[1::2], trained(results.read("gpu_layouts"))
    ranks = results.read("gpu_ranks")
    families = {
        "matrix products": lambda what: what.startswith("product"),
        "attention": lambda what: what.startswith("attention,"),
        "pointwise": lambda what: not what.startswith(("product", "attention", "expert", "launch")),
    }
    for family, of_family in families.items():
        own = [row for row in kernels if of_family(row["what"])]
        show(family, kernel_errors(own, table))
    show("both passes of a rank, dense models", [both_passes(row) for row in dense(ranks)[1::2]])
    show("iterations of whole models", layout_errors(layouts[1::2], table))
    show("peak memory, nothing fitted", [peak(row) for row in (*ranks, *layouts)])
    for name in NEUTRAL:
        without = fit(Calibration(table.name), name)
        show(f"iterations, fitted without {name}", layout_errors(layouts[1::2], without))


if __name__ == "__main__":
    main()
