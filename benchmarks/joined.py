"""Stages, replicas and tensor degree planned together, against each alone; prints Markdown.

    PYTHONPATH=.dev python benchmarks/joined.py [--only gpt2 llama vit] [--devices 8]

Times are an H100's roofline, links 450 GB/s; time per sample of a batch of 32 microbatches, Adam.
Each model is planned with three memories: the H100's, and two below what a whole replica takes.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from sharding_models import MODELS, gpt2, llama, vit

import stagecut
from stagecut import InfeasibleError, Limits, PlacementRules, Training, Workload

MICROBATCHES = 32
MADE = {
    "gpt2": partial(gpt2, batch=8),
    "llama": partial(llama, batch=4),
    "vit": partial(vit, batch=32),
    "resnet50": MODELS["resnet50"],
}


def profiled(name: str, degrees: tuple[int, ...]) -> tuple[Workload, float]:
    """Return the layers of a model with configurations, and the CPU seconds that took."""
    model, inputs = MADE[name]()
    began = time.process_time()
    done = stagecut.profile(model, inputs, training=True, estimate="h100", depth="auto", name=name)
    layers = stagecut.layers_by_degree(done, degrees, estimate="h100")
    return layers, time.process_time() - began


def ways(devices: int) -> dict[str, Training]:
    """Return the problems that are compared."""
    one = PlacementRules(max_stages=1)
    base = Training(microbatches=MICROBATCHES)
    named = {
        "joined": {},
        "pipeline": {"degrees": (1,), "replicas": (1,)},
        "data": {"degrees": (1,), "placement_rules": one},
        "tensor": {"degrees": (devices,), "replicas": (1,), "placement_rules": one},
        "pipeline and data": {"degrees": (1,)},
    }
    return {
        name: stagecut.Training(microbatches=base.microbatches, **options)  # type: ignore[arg-type]
        for name, options in named.items()
    }


def row(workload: Workload, devices: int, memory: float) -> list[str]:
    """Return what each way takes, and the plan of the joined one."""
    assert workload.cluster is not None
    cluster = workload.cluster.with_counts(devices, 0, memory)
    cells, shown = [], ""
    least = float("inf")
    for name, problem in ways(devices).items():
        try:
            found = stagecut.solve(workload, cluster, problem, limits=Limits(seconds=60, gap=1e-4))
        except InfeasibleError:
            cells.append("—")
            continue
        if found.plan is None or found.objective is None:
            cells.append("—")
            continue
        cells.append(f"{found.objective:.4g}")
        least = min(least, found.objective)
        if name == "joined":
            stages = found.plan.solution.stages  # type: ignore[union-attr]
            shown = ", ".join(f"{len(s.nodes)}×({s.replicas}, {s.degree})" for s in stages)
            first = found.objective
    assert first <= least * (1 + 1e-4)
    return [*cells, shown]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=["gpt2", "llama", "vit"])
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--degrees", type=int, nargs="*", default=[1, 2, 4, 8])
    given = parser.parse_args()
    torch.manual_seed(0)
    print("| model | memory | joined ms | pipeline | data | tensor | pipeline and data "
          "| layers × (replicas, degree) |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for model in given.only:
        layers, seconds = profiled(model, tuple(given.degrees))
        assert layers.layers is not None
        whole = float(layers.layers.fixed_bytes[layers.layers.label.index("vanilla")])
        one = [c for c in range(layers.layers.size) if layers.layers.label[c] == "vanilla"]
        whole = float((layers.layers.fixed_bytes + layers.layers.bytes_per_microbatch)[one].sum())
        for memory in (80 * 2.0**30, whole / 2, whole / 4):
            cells = row(layers, given.devices, memory)
            print(f"| {model} | {memory / 2**30:.1f} GiB |", " | ".join(cells), "|", flush=True)
        print(f"<!-- {model}: {seconds:.0f} CPU s to profile and to shard its layers -->")
