"""Stages, replicas and tensor degree planned together, against each alone; prints Markdown.

    PYTHONPATH=.dev python benchmarks/joined.py [--only gpt2 llama vit] [--devices 8]

Times are an H100's roofline with links of 450 GB/s, in milliseconds per microbatch of a batch,
without fill and drain. Each model is planned with 32 microbatches and the memory of an H100, with a
quarter of the memory that one whole replica takes, and with 2 microbatches, which leave replicas
and stages little to do.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import torch
from sharding_models import gpt2, llama, resnet50, vit

import stagecut
from stagecut import InfeasibleError, Limits, PipelineJob, PlacementRules, Workload

MADE = {
    "gpt2": partial(gpt2, batch=8),
    "llama": partial(llama, layers=8, batch=8),
    "resnet50": partial(resnet50, batch=64),
    "vit": partial(vit, batch=64),
}
GIB = 2.0**30


def profiled(name: str, degrees: tuple[int, ...]) -> tuple[Workload, float]:
    """Return the layers of a model with configurations, and the CPU seconds that took."""
    model, inputs = MADE[name]()
    began = time.process_time()
    done = stagecut.profile(model, inputs, training=True, estimate="h100", depth="auto", name=name)
    layers = stagecut.api.layers_by_degree(done, degrees, estimate="h100")
    return layers, time.process_time() - began


def ways(devices: int, microbatches: int, **more: Any) -> dict[str, PipelineJob]:
    """Return the problems that are compared, with more options if they are given."""
    problem = partial(PipelineJob, microbatches=microbatches, **more)
    one = PlacementRules(max_stages=1)
    return {
        "joined": problem(),
        "pipeline": problem(degrees=(1,), replicas=(1,)),
        "data": problem(degrees=(1,), placement_rules=one),
        "tensor": problem(degrees=(devices,), replicas=(1,), placement_rules=one),
        "pipeline and data": problem(degrees=(1,)),
    }


def row(workload: Workload, devices: int, memory: float, microbatches: int) -> list[str]:
    """Return what each way takes, and the stages of the joined plan."""
    assert workload.cluster is not None
    cluster = workload.cluster.with_counts(devices, 0, memory)
    taken: dict[str, float] = {}
    shown = ""
    for name, problem in ways(devices, microbatches).items():
        try:
            found = stagecut.solve(workload, cluster, problem, limits=Limits(seconds=60, gap=1e-4))
        except InfeasibleError:
            continue
        if found.plan is not None:
            taken[name] = found.plan.objective
        if found.plan is not None and name == "joined":
            stages = found.plan.solution.stages  # type: ignore[union-attr]
            shown = ", ".join(f"{len(s.nodes)} ({s.replicas}, {s.degree})" for s in stages)
    assert not taken or taken["joined"] <= min(taken.values()) * (1 + 1e-4)
    return [*(f"{taken[n]:.4g}" if n in taken else "—" for n in ways(1, 1)), shown]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=["gpt2", "llama", "vit"], choices=list(MADE))
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--degrees", type=int, nargs="*", default=[1, 2, 4, 8])
    given = parser.parse_args()
    torch.manual_seed(0)
    columns = ["model", "microbatches", "memory", *ways(1, 1), "layers (replicas, degree)"]
    print("|", " | ".join(columns), "|\n" + "|---" * len(columns) + "|", flush=True)
    for model in given.only:
        workload, seconds = profiled(model, tuple(given.degrees))
        layers = workload.layers
        assert layers is not None
        plain = [c for c in range(layers.size) if layers.label[c] == "vanilla"]
        whole = float((layers.fixed_bytes + layers.bytes_per_microbatch)[plain].sum())
        for microbatches, memory in ((32, 80 * GIB), (32, whole / 4), (2, 80 * GIB)):
            cells = row(workload, given.devices, memory, microbatches)
            shown = [model, str(microbatches), f"{memory / GIB:.1f} GiB", *cells]
            print("|", " | ".join(shown), "|", flush=True)
        print(f"<!-- {model}: {seconds:.0f} CPU s to profile, and to shard its layers -->")
