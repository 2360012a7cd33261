"""DistPar's figures 2 and 4 by price: speed-up from 1 to 32 devices, and a face recogniser.

    python benchmarks/sharding_scaling.py [--part scaling] [--part faces] [--only BERT-Base:128]

Times are rooflines: for `scaling`, of an H100 with links of 10 µs and 50 GB/s; for `faces`, of 8
V100s with 10 µs and 25 GB/s. Gradients are reduced twice: in buckets of 25 MiB beside the backward
pass (`overlap`), and without any overlap. Batch normalisation takes the statistics of each device's
own samples, as PyTorch's data parallelism does, so the operators' all-reduces are left out of the
program. `scaling` replaces its rows of `results/sharding_scaling.csv`, with `--only` those of one
model and batch; `faces` replaces those of `results/sharding_face_net.csv`. The time limit allows
for a machine that has other work to do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from results import Row, write
from sharding_models import bert, face_net, resnet50

import stagecut
from stagecut import DeviceMesh, Limits, Link, Sharding, Workload, solve
from stagecut.instances import program_workload

LIMITS = Limits(seconds=240, gap=0.005)
#: Batches for each model: those of before, and larger ones.
SCALED = (("ResNet-50", resnet50, 256), ("BERT-Base", bert, 128), ("ResNet-50", resnet50, 2048),
          ("BERT-Base", bert, 1024))  # fmt: skip
DEVICES = (1, 2, 4, 8, 16, 32)
#: Samples per device, with the gain over data parallelism that the paper says.
FACES, CLASSES = ((8, 1.2), (64, 0.5)), (10_000, 100_000, 1_000_000)


def local_statistics(workload: Workload) -> Workload:
    """Return a program whose batch normalisation adds up no statistics."""
    assert workload.program is not None
    operators = tuple(
        replace(o, signatures=tuple(replace(s, reduced_bytes=0.0) for s in o.signatures))
        if "batch_norm" in o.kind
        else o
        for o in workload.program.operators
    )
    program = replace(workload.program, operators=operators)
    return program_workload(program, workload.name, time_unit=workload.time_unit)


def milliseconds(
    workload: Workload, problem: Sharding, method: str = "auto"
) -> tuple[float, float]:
    """Return the time of a step and its gap."""
    found = solve(workload, problem=problem, method=method, limits=LIMITS, workers=1)
    assert found.objective is not None
    return found.objective, found.gap if found.gap is not None else 1.0


def scaling(only: str | None) -> Iterable[Row]:
    """Yield the time of a step by devices: the best, and data parallelism."""
    for name, make, batch in SCALED:
        if only not in (None, f"{name}:{batch}"):
            continue
        model, inputs = make(batch)
        traced = stagecut.tensor_program(model, inputs, estimate="h100", name=name)
        workload, alone = local_statistics(traced), 0.0
        for count in DEVICES:
            began = time.process_time()
            problem = Sharding(DeviceMesh((count,), (Link(10e-6, 50e9),)), overlap=True)
            best, gap = milliseconds(workload, problem)
            cpu = time.process_time() - began
            rule, _ = milliseconds(workload, problem, "data-parallel")
            plain, _ = milliseconds(workload, replace(problem, overlap=False))
            alone = alone or best
            yield {
                "model": name,
                "batch": str(batch),
                "devices": str(count),
                "best_ms": f"{best:.5g}",
                "gap_percent": f"{100 * gap:.3f}",
                "cpu_seconds": f"{cpu:.1f}",
                "speed_up": f"{alone / best:.2f}",
                "samples_per_second": f"{1000 * batch / best:.0f}",
                "data_parallel_ms": f"{rule:.5g}",
                "nothing_overlapped_ms": f"{plain:.5g}",
            }


def faces(_: str | None) -> Iterable[Row]:
    """Yield the time of a face recogniser on 8 devices: the best, data and model parallelism."""
    for batch, published in FACES:
        for classes in CLASSES:
            model, inputs = face_net(classes, 8 * batch)
            traced = stagecut.tensor_program(model, inputs, estimate="v100-32gb", name="faces")
            workload = local_statistics(traced)
            problem = Sharding(DeviceMesh((8,), (Link(10e-6, 25e9),)), overlap=True)
            best, gap = milliseconds(workload, problem)
            rule, _ = milliseconds(workload, problem, "data-parallel")
            split = replace(problem, fixed=(("classes.weight", "S0"),))
            parts, _ = milliseconds(workload, split)
            yield {
                "batch_per_device": str(batch),
                "classes": str(classes),
                "best_ms": f"{best:.5g}",
                "gap_percent": f"{100 * gap:.3f}",
                "data_parallel_ms": f"{rule:.5g}",
                "classes_divided_ms": f"{parts:.5g}",
                "gain_percent": f"{100 * (rule / best - 1):.1f}",
                "published_largest_gain_percent": f"{100 * published:.0f}",
            }


#: The table of each part, the columns that tell its rows apart, and what yields them.
PARTS: dict[str, tuple[str, tuple[str, ...], Callable[[str | None], Iterable[Row]]]] = {
    "scaling": ("sharding_scaling", ("model", "batch", "devices"), scaling),
    "faces": ("sharding_face_net", ("batch_per_device", "classes"), faces),
}


def main() -> None:
    """Run the parts asked for, and write their tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--only", metavar="MODEL:BATCH", help="of the scaling; default: all")
    given = parser.parse_args()
    for part in given.part or PARTS:
        table, keys, rows_of = PARTS[part]
        for row in rows_of(given.only):
            print(part, *row.values(), flush=True)
            write(table, [row], "0", keys=keys)


if __name__ == "__main__":
    main()
