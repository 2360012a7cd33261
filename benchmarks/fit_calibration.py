"""The fit of the tables of efficiencies: python benchmarks/fit_calibration.py FILE… [--only NAME].

Each table of `TABLES` is fitted by least squares of the logarithm of predicted over measured time,
on some rows of its kind of device and software: those whose number is a multiple of five, or of
three in sources of at most a hundred rows. The other rows judge it (`published_runs.py`). A prior
keeps parameters near their start if the rows say little about them. Rows weigh less if their
source, or their model and precision, has many. Writes ``calibrations.json``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import gpu_fit
import numpy as np
from gpu_fit import changed, value
from published_rows import Case, cases, read_rows
from scipy.optimize import least_squares

from stagecut.instances.costs import calibration as tables
from stagecut.instances.costs.calibration import Calibration
from stagecut.instances.costs.layers import LayerPrices
from stagecut.runtime.estimate import iteration_times

#: Parameters that every table has its own value of.
COMMON = ("kernels.product", "kernels.memory", "host")
#: Parameters of which little is known before: 0.05 of error would pay for a factor of e, and of
#: shares of peaks and bandwidths for a quarter more or less.
LOOSE = ("host", "hooks", "step", "broadcast", "links.skew", "kernels.depth")
#: Where the host's time per kernel starts for Megatron of today, which issues most from Python.
EAGER = {"host": 3e-5}
#: What a share of a peak or of a bandwidth can be at most.
MOST = {"kernels": 0.95, "links": 0.95, "tensor_hidden": 0.95, "optimizer": 0.95, "sharpness": 8.0}
#: Table by device and software family: where it starts, and what is fitted.
TABLES: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "a100/megatron": ({}, (*COMMON, "links.peer", "links.skew")),
    "a100/megatron-deepspeed": (
        {"host": 5e-5, "hooks": 1.2e-2, "kernels.product": 0.75},
        (*COMMON, "kernels.depth", "hooks", "sharpness", "links.peer", "links.skew",
         "links.network", "optimizer"),
    ),
    "a100/fsdp": ({}, (*COMMON, "kernels.attention", "kernels.attention_backward")),
    "a100/other": (
        {"broadcast": 1e-3},
        (*COMMON, "links.network", "links.peer", "broadcast"),
    ),
    "h100/megatron": (
        {**EAGER, "step": 0.08},
        (*COMMON, "kernels.product8", "links.peer", "links.network", "step",
         "tensor_hidden"),
    ),
    "h100/fsdp": ({}, (*COMMON, "kernels.attention", "kernels.attention_backward")),
    "h100/torchtitan": (
        {},
        (*COMMON, "kernels.product8", "kernels.attention", "kernels.attention_backward",
         "links.peer", "tensor_hidden"),
    ),
    "b200/megatron": (
        EAGER,
        (*COMMON, "kernels.product8", "kernels.product4", "kernels.attention", "links.peer",
         "links.network", "tensor_hidden"),
    ),
    "b300/megatron": (
        EAGER,
        (*COMMON, "kernels.product8", "kernels.product4", "kernels.attention", "links.peer",
         "links.network", "tensor_hidden"),
    ),
    "v100/other": ({}, (*COMMON, "links.peer", "links.network")),
}  # fmt: skip


#: Tables that measurements of kernels and of ranks on one GPU make (`gpu_fit.py`).
MEASURED = ("h100/stagecut",)
#: Tables of devices of which no run is in the files: where they start, and who measured it.
STATED: dict[str, tuple[dict[str, float], str]] = {
    "mi300x/megatron": (
        {"kernels.product": 0.47, "kernels.product8": 0.38},
        "not fitted: 620 of 1,307 TFLOP/s of 16-bit products and 990 of 2,615 of 8-bit ones, as "
        "SemiAnalysis measured (2024)",
    ),
}


def fits(case: Case, of_source: int) -> bool:
    """Whether a row is one of those that tables are fitted on: none with a layout that we assume.

    Parameters
    ----------
    of_source
        Rows of its source.
    """
    number = re.sub(r"\D", "", case.row["id"])
    stated = not any(re.match(r"microbatches|\d+ chunks", one) for one in case.assumed)
    each = 5 if of_source > 100 else 3
    return bool(number) and int(number) % each == 0 and case.seconds is not None and stated


def predicted(rows: Sequence[Case], table: Calibration) -> np.ndarray:
    """Return the seconds of each row with a table."""
    seconds = np.empty(len(rows))
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, case in enumerate(rows):
        alike[case.description, case.cluster].append(i)
    for (description, cluster), group in alike.items():
        prices = LayerPrices(description, cluster, table)
        times = iteration_times([rows[i].layout for i in group], prices)
        seconds[group] = [time.seconds for time in times]
    return seconds


def fit(name: str, rows: Sequence[Case]) -> Calibration:
    """Return the fitted table called `name`."""
    start_values, names = TABLES[name]
    start = changed(Calibration(name), list(start_values), list(start_values.values()))
    begin = np.log([value(start, one) for one in names])
    most = np.log([MOST.get(one.partition(".")[0], np.inf) for one in names])
    most[[one in ("links.skew", "kernels.depth") for one in names]] = np.inf
    measured = np.log([case.seconds for case in rows])
    held = np.array([0.05 if one in LOOSE else 0.2 for one in names])
    per_source = Counter(case.source for case in rows)
    alike = Counter((case.description.name, case.layout.recipe.compute) for case in rows)
    weight = np.array(
        [
            (per_source[case.source] * alike[case.description.name, case.layout.recipe.compute])
            ** -0.25
            for case in rows
        ]
    )
    weight *= np.sqrt(len(rows) / (weight**2).sum())

    def residuals(x: np.ndarray) -> np.ndarray:
        error = np.log(predicted(rows, changed(start, names, np.exp(x)))) - measured
        prior = held * (x - begin)
        return np.concatenate((weight * error, prior))

    found = least_squares(
        residuals,
        begin,
        bounds=(-np.inf, most),
        loss="soft_l1",
        f_scale=0.05,
        diff_step=0.02,
        max_nfev=10,
    )
    values = [float(f"{v:.3g}") for v in np.exp(found.x)]
    sources = ", ".join(f"{count} of {source}" for source, count in sorted(per_source.items()))
    return replace(
        changed(start, names, values),
        fitted=f"{sources}: ids divisible by 5, or 3 in small sources",
        rows=tuple(sorted(f"{case.source}:{case.row['id']}" for case in rows)),
    )


def main() -> None:
    """Fit the tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", help="fit this table, keep the others")
    options = parser.parse_args()
    path = Path(tables.__file__).parent / "calibrations.json"
    written = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    added = Path(__file__).parent / "published_layouts.csv"
    every = cases(read_rows(options.files, [added]))[0]
    of_source = Counter(case.source for case in every)
    rows = [case for case in every if fits(case, of_source[case.source])]
    for name in TABLES:
        if options.only and name != options.only:
            continue
        own = [
            case
            for case in rows
            if f"{case.cluster.accelerator.family}/{case.layout.software.value}" == name
        ]
        table = fit(name, own)
        ratio = predicted(own, table) / np.array([case.seconds for case in own])
        print(f"{name}: {len(own)} rows, median |error| {np.median(abs(ratio - 1)):.1%}")
        written[name] = {key: value for key, value in asdict(table).items() if key != "name"}
    for name in MEASURED:
        if options.only in (None, name):
            table = gpu_fit.fit(Calibration(name))
            written[name] = {key: value for key, value in asdict(table).items() if key != "name"}
    for name, (values, source) in STATED.items():
        table = changed(Calibration(name, fitted=source), list(values), list(values.values()))
        written[name] = {key: value for key, value in asdict(table).items() if key != "name"}
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
