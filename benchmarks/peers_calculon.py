"""Calculon's exhaustive search beside the costs: which layout it takes, and its worth here.

    python benchmarks/peers_calculon.py --calculon DIR [--python PYTHON] [--csv OUT] [--only NAME]
        [--seconds 3600]

DIR is an unchanged checkout of calculon-ai/calculon; PYTHON has what it imports (psutil, pandas).
Each case is a model of its own on A100s of 80 GB, over the space that it can search and we can
price: without offload (its second memory set to 0 bytes), without overlap and fused activations,
and without larger microbatches where a smaller one did not fit (its option ``-m``). Its search runs
on one process. Then `iteration_times` prices the same space completely: every layout that fits, the
fastest of them, and the layout that Calculon took.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from job_sweeps import in_short
from peers import gpt
from results import origin

from stagecut.instances import InputError
from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layers import LayerPrices
from stagecut.instances.costs.layout import Layout, check_layout
from stagecut.instances.costs.memory import peak_memory
from stagecut.runtime.estimate import iteration_times

#: Model, devices and global batch.
CASES = (
    ("megatron-5B", 8, 64),
    ("megatron-22B", 8, 64),
    ("gpt3-175B", 64, 64),
)
SYSTEM = "systems/a100_80g.json"
RECOMPUTE = {"full": {"full"}, "attn_only": {"core_attn"}, "none": ()}


def search(
    checkout: Path,
    python: str,
    name: str,
    devices: int,
    batch: int,
    patience: float,
    *,
    whole: bool = False,
) -> dict[str, Any] | None:
    """Run Calculon's search; None if it does not end in so many seconds.

    Parameters
    ----------
    whole
        Count what it would try with offload and overlap, too, and try none of it.

    Returns
    -------
    dict
        Executions tried, CPU seconds, and the best execution with its seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        system = json.loads((checkout / SYSTEM).read_text())
        if not whole:
            system["mem2"]["GiB"] = 0
        described, out = Path(folder) / "system.json", Path(folder) / "out.json"
        described.write_text(json.dumps(system))
        fewer = ["-d"] if whole else ["-m", "--no-tp-overlap", "--no-dp-overlap"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [
            python, "bin/calculon", "llm-optimal-execution", "-c", "1", "-f", "false", *fewer,
            f"models/{name}.json", str(devices), str(batch), "float16", str(described), str(out),
        ]  # fmt: skip
        said = run(command, checkout, patience)
        if said is None:
            return None
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        tried = re.search(r"Total executions: (\d+)", said)
        assert tried is not None, said
        found = {"tried": int(tried[1]), "cpu_s": after.ru_utime - before.ru_utime}
        if not whole:
            best = json.loads(out.read_text())["0"]
            found |= {"execution": best["execution"], "seconds": best["stats"]["total_time"]}
        return found


def run(command: list[str], folder: Path, patience: float) -> str | None:
    """Return what a program prints; after so many seconds end it with its workers."""
    started = subprocess.Popen(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return started.communicate(timeout=patience)[0]
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
        return None


def layout_of(app: dict[str, Any], execution: dict[str, Any]) -> Layout:
    """Return an execution of Calculon's as a layout; axes on its faster network lie inside."""
    on = {axis: execution[f"{axis}_par_net"] for axis in ("tensor", "data", "pipeline")}
    inside = sorted(on, key=lambda axis: on[axis])
    chunks = execution["pipeline_interleaving"]
    return Layout(
        tensor=execution["tensor_par"],
        sequence_parallel=execution["tensor_par_comm_type"] == "rs_ag"
        and execution["tensor_par"] > 1,
        pipeline=execution["pipeline_par"],
        chunks=chunks,
        data=execution["data_par"],
        zero=int(execution["optimizer_sharding"]),
        microbatch=execution["microbatch_size"],
        global_batch=execution["batch_size"],
        sequence=app["seq_size"],
        schedule="interleaved" if chunks > 1 else "1f1b",
        recompute=RECOMPUTE[execution["activation_recompute"]],
        recipe="megatron-fp16",
        fused_attention=False,
        order=("context", *inside),
    )


def space(
    model: ModelDescription, cluster: TrainingCluster, batch: int, sequence: int
) -> Iterator[Layout]:
    """Yield the layouts that Calculon searches, and that are legal here."""
    devices = cluster.devices
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    for tensor, pipeline in itertools.product(divisors, divisors):
        if devices % (tensor * pipeline) or model.layers % pipeline:
            continue
        data = devices // (tensor * pipeline)
        per_rank = model.layers // pipeline
        counts = [
            v for v in range(1, per_rank + 1) if per_rank % v == 0 and (v == 1 or pipeline > 1)
        ]
        sizes = [b for b in range(1, batch // data + 1) if batch // data % b == 0]
        modes = itertools.product(
            counts, sizes, RECOMPUTE.values(), (0, 1)[: 2 if data > 1 else 1],
            (False, True)[: 2 if tensor > 1 else 1],
        )  # fmt: skip
        for chunks, size, recompute, zero, sequence_parallel in modes:
            layout = Layout(
                tensor=tensor, sequence_parallel=sequence_parallel, pipeline=pipeline,
                chunks=chunks, data=data, zero=zero, microbatch=size, global_batch=batch,
                sequence=sequence, schedule="interleaved" if chunks > 1 else "1f1b",
                recompute=recompute, recipe="megatron-fp16", fused_attention=False,
            )  # fmt: skip
            try:
                check_layout(model, layout, cluster)
            except InputError:
                continue
            yield layout


def compare(
    checkout: Path, python: str, name: str, devices: int, batch: int, patience: float
) -> dict[str, Any]:
    """Return the row of a case."""
    app = json.loads((checkout / "models" / f"{name}.json").read_text())
    model, cluster = gpt(name, app), training_cluster(f"a100:{devices}")
    room = cluster.accelerator.memory_bytes
    prices = LayerPrices(model, cluster, calibration("a100", "megatron"))
    begun = time.process_time()
    layouts = [
        one
        for one in space(model, cluster, batch, app["seq_size"])
        if peak_memory(model, one).needed <= room
    ]
    times = iteration_times(layouts, prices)
    own, best = min(zip(times, layouts, strict=True), key=lambda one: one[0].seconds)
    row = {
        "model": name,
        "devices": devices,
        "batch": batch,
        "best_layout": in_short(best),
        "best_s": f"{own.seconds:.4g}",
        "priced_here": len(layouts),
        "cpu_s_here": f"{time.process_time() - begun:.1f}",
    }
    whole = search(checkout, python, name, devices, batch, patience, whole=True)
    theirs = search(checkout, python, name, devices, batch, patience)
    row["calculon_whole_space"] = whole["tried"] if whole else ""
    if theirs is None:
        lacking = ("layout", "says_s", "here_s", "here_fits", "behind")
        ended = {"calculon_tried": "", "calculon_cpu_s": f"not ended after {patience:g} s"}
        return row | ended | {f"calculon_{key}": "" for key in lacking}
    taken = layout_of(app, theirs["execution"])
    usual = replace(taken, order=Layout.order)
    priced = min(iteration_times([taken, usual], prices), key=lambda one: one.seconds)
    return row | {
        "calculon_tried": theirs["tried"],
        "calculon_cpu_s": f"{theirs['cpu_s']:.1f}",
        "calculon_layout": in_short(taken),
        "calculon_says_s": f"{theirs['seconds']:.4g}",
        "calculon_here_s": f"{priced.seconds:.4g}",
        "calculon_here_fits": int(peak_memory(model, taken).needed <= room),
        "calculon_behind": f"{priced.seconds / own.seconds - 1:.4f}",
    }


def main() -> None:
    """Compare, print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calculon", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--only", default="", help="cases whose model's name has this in it")
    parser.add_argument("--seconds", type=float, default=3600, help="after which one is left")
    options = parser.parse_args()
    rows = []
    for case in CASES:
        if options.only not in case[0]:
            continue
        row = compare(options.calculon.absolute(), options.python, *case, options.seconds)
        rows.append(row | origin(""))
        print("\n".join(f"{key:22}{value}" for key, value in rows[-1].items()) + "\n", flush=True)
        if options.csv:
            with options.csv.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
