"""Costs held against a GPU: kernels, ranks of jobs, layouts of whole models, beside predictions.

    python benchmarks/gpu_costs.py --part kernels --seconds 60 --out FOLDER
    python benchmarks/gpu_costs.py --part ranks --seconds 200 --out FOLDER
    python benchmarks/gpu_costs.py --part layouts --seconds 400 --out FOLDER

Needs one GPU of the table of accelerators, torch and msgspec. Each row is written as soon as it is
measured; rows for which no time is left are skipped. `--small` runs everything with narrow layers,
on a CPU, too. On a machine with this repository,

    python benchmarks/gpu_costs.py --take FOLDER

takes the tables into `results/`, and `--again` renews the predictions there when costs change.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

import gpu_kernels
import gpu_layouts
import gpu_ranks
import results
import torch

from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.clusters import accelerator
from stagecut.instances.costs.hardware import Accelerator

SEED = 0
Again = Callable[[Mapping[str, str], Accelerator], dict[str, object]]


def device_name(device: torch.device) -> str:
    """Return the device as the table of accelerators calls it."""
    if device.type != "cuda":
        return "h100-sxm"
    return accelerator(torch.cuda.get_device_name(device)).name


def machine(device: torch.device) -> dict[str, str]:
    """Return date, machine and versions of a measurement."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    versions = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    return {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {name}",
        "versions": "; ".join(versions),
    }


def kernel_rows(
    device: torch.device, small: bool, seconds: float
) -> Iterator[tuple[str, Callable[[], Mapping[str, object]]]]:
    """Yield what makes each row of the table of kernels."""
    chip = accelerator(device_name(device))
    every = gpu_kernels.kernels(SEED, small)
    if device.type != "cuda":
        every = [one for one in every if "cuDNN" not in one.what]
    for one in every:

        def measure(one: gpu_kernels.Kernel = one) -> Mapping[str, object]:
            found = gpu_kernels.measured(one, device, 0.5 * seconds / len(every))
            named = {"what": one.what, "shape": one.text}
            return {**named, **kernel_predictions(one, chip), "measured_us": 1e6 * found}

        yield f"{one.what} {one.text}", measure


def kernel_predictions(one: gpu_kernels.Kernel, chip: Accelerator) -> dict[str, object]:
    """Return microseconds of a kernel by the tables of two software families."""
    return {
        column: 1e6 * gpu_kernels.predicted(one, chip, calibration(chip.family, software))
        for column, software in (("predicted_us", "stagecut"), ("megatron_us", "megatron"))
    }


def rank_rows(
    device: torch.device, small: bool
) -> Iterator[tuple[str, Callable[[], Mapping[str, object]]]]:
    """Yield what makes each row of the table of ranks."""
    chip = accelerator(device_name(device))
    for one in gpu_ranks.cases():

        def measure(one: gpu_ranks.RankCase = one) -> Mapping[str, object]:
            return gpu_ranks.compared(one, device, chip, small)

        yield f"{one.model} {one.text}", measure


def add_terms(path: Path, device: torch.device, small: bool) -> None:
    """Profile the ranks of a table that is written, and add their kernels by term."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    by_name = path.with_name("gpu_ranks_kernels.jsonl").open("w", encoding="utf-8")
    with by_name:
        for row in rows:
            one, model = gpu_ranks.sized(gpu_ranks.case_of(row), small)
            seconds, kernels = gpu_ranks.by_term(one, model, device)
            row.update((key, str(shown(value))) for key, value in seconds.items())
            by_name.write(json.dumps({"case": f"{one.model} {one.text}", "us": kernels}) + "\n")
            release(device)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def layout_rows(
    device: torch.device, small: bool
) -> Iterator[tuple[str, Callable[[], Mapping[str, object] | None]]]:
    """Yield what makes each row of the table of layouts."""
    chip = device_name(device)
    for one in gpu_layouts.cases(chip):

        def measure(one: gpu_layouts.LayoutCase = one) -> Mapping[str, object] | None:
            return gpu_layouts.compared(one, device, chip, small)

        yield f"{one.model} {one.text}", measure


def release(device: torch.device) -> None:
    """Give back what the last row held, once it is much."""
    if device.type == "cuda" and torch.cuda.memory_reserved(device) > 32 << 30:
        gc.collect()
        torch.cuda.empty_cache()


def shown(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def measure(part: str, options: argparse.Namespace, device: torch.device) -> int:
    """Measure a part's rows into a file, and return how many failed."""
    start, failed, seconds, out = time.monotonic(), 0, options.seconds, options.out
    rows = {
        "kernels": lambda: kernel_rows(device, options.small, seconds),
        "ranks": lambda: rank_rows(device, options.small),
        "layouts": lambda: layout_rows(device, options.small),
    }[part]()
    origin, path = machine(device), out / f"gpu_{part}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for name, make in rows:
            if options.only not in name:
                continue
            if time.monotonic() - start > seconds:
                print(f"no time left for {name} and what follows", flush=True)
                break
            begin = time.monotonic()
            try:
                made = make()
            except Exception as error:  # one that fails must not lose the others
                failed += 1
                where = traceback.extract_tb(error.__traceback__)[-1]
                print(
                    f"FAILED {name}: {error!r:.500} at {where.filename}:{where.lineno}", flush=True
                )
                continue
            finally:
                release(device)
            if made is None:
                continue
            row = {**made, **origin}
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow({key: shown(value) for key, value in row.items()})
            file.flush()
            took = time.monotonic() - begin
            cells = " ".join(f"{shown(v)}" for v in list(row.values())[2:-3])
            print(f"{took:5.1f} s  {name}: {cells}", flush=True)
    if part == "ranks" and device.type == "cuda":
        add_terms(path, device, options.small)
    return failed


def take(folder: Path | None) -> None:
    """Put what was measured into `results/`, and what the costs say now beside every row."""
    revision = results.origin(str(SEED))["revision"]  # before a table is written
    for part, (again, keys) in AGAIN.items():
        rows = results.read(f"gpu_{part}")
        path = None if folder is None else folder / f"gpu_{part}.csv"
        if path is not None and path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                rows += [row | {"revision": revision} for row in csv.DictReader(file)]
        known = {tuple(row[key] for key in keys): row for row in rows}
        for row in known.values():
            now = again(row, accelerator(row["machine"].partition(", ")[2]))
            row.update((key, str(shown(value))) for key, value in now.items() if key in row)
        results.write(f"gpu_{part}", known.values(), str(SEED))


def kernel_again(row: Mapping[str, str], chip: Accelerator) -> dict[str, object]:
    """Return what the costs say of the kernel of a row."""
    return kernel_predictions(gpu_kernels.parsed(row["what"], row["shape"]), chip)


def layout_again(row: Mapping[str, str], chip: Accelerator) -> dict[str, object]:
    """Return what the costs say of the layout of a row."""
    return gpu_layouts.predicted_again(row, chip.name)


#: What the costs say of a row, and the columns that tell rows apart, by part.
AGAIN: Mapping[str, tuple[Again, tuple[str, ...]]] = {
    "kernels": (kernel_again, ("what", "shape", "machine")),
    "ranks": (gpu_ranks.predicted_again, ("model", "layers", "layout")),
    "layouts": (layout_again, ("model", "layout", "machine")),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or take what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=tuple(AGAIN), action="append")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each part, about")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--take", type=Path, help="folder of what was measured elsewhere")
    parser.add_argument("--again", action="store_true", help="predict all rows of the tables again")
    parser.add_argument("--small", action="store_true", help="narrow layers, short sequences")
    options = parser.parse_args(argv)
    if options.take or options.again:
        take(options.take)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and not options.small:
        sys.exit("no GPU: --small runs narrow layers on the CPU")
    parts = options.part or tuple(AGAIN)
    failed = sum(measure(part, options, device) for part in parts)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
