"""Degrees that differ between the kinds of nodes of a training job, and what they would save.

    python benchmarks/job_degrees.py [--only NAME]

Writes `results/job_degrees.csv`: a row per model and cluster. It sets the best plan of the declared
space, in which all stages have the same degrees, beside the best layout found in which the stages
on each kind of nodes (with one kind: on the first nodes and on the others) have tensor, context
and data degrees and a microbatch of their own.

There the M microbatches have β sequences each, and stage i with d_i replicas has microbatches of
b_i = β / d_i sequences: all stages run the same 1F1B of M. Seconds and bytes of a stage are those
of a layout with its degrees; a message takes as long as on the side with fewer ranks.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations, product

import numpy as np
import results

from stagecut.api.job import describe, job_costs, solve_job
from stagecut.instances import InputError
from stagecut.instances.common.arrays import Floats
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.collectives import message
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layers import LayerPrices
from stagecut.instances.costs.layout import Layout, Recompute, check_heads
from stagecut.instances.costs.memory import block_held, rank_memory, stage_held
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.costs.stages import (
    StageParts,
    exposed_traffic,
    optimizer_rates,
    stage_time,
)
from stagecut.instances.job.problem import TrainingJob
from stagecut.runtime.estimate import PipelineShape, longest_path
from stagecut.solvers import Limits

#: Model, cluster, sequences per iteration, recipe: unlike nodes in equal and in unequal numbers,
#: with unlike memory, in nodes of other sizes, and nodes of one kind in odd numbers.
CASES = (
    ("llama3-8b", "h100:8x2+a100:8x2", 256, None),
    ("llama3-8b", "h100:8+a100:8x2", 192, None),
    ("llama3-8b", "h100:8x2+a100:8", 192, None),
    ("llama3-8b", "h100:8x3+a100:8x2", 240, None),
    ("llama3-8b", "h100:8x2+a100-40gb:8x2", 256, None),
    ("llama3-8b", "h100:8x2+a100-40gb:4x4,network=25GB/s", 256, None),
    ("llama3-8b", "h100:8+a100-40gb:4x3,network=25GB/s", 240, None),
    ("llama2-13b", "a100-40gb:4x4+v100-16gb:4x4,network=12.5GB/s", 256, "megatron-fp16"),
    ("llama3-70b", "h100:8x2+a100:8x2", 256, None),
    ("llama3-70b", "h100:8x4+a100:8x3", 240, None),
    ("llama3-70b", "b200:8x2+h100:8x3", 240, None),
    ("llama3.2-1b", "h100:8", 128, None),
    ("llama3-8b", "h100:8x3", 240, None),
    ("llama3-8b", "h100:8x5", 240, None),
)
SEQUENCE, LIMITS = 4096, Limits(seconds=60.0, gap=1e-3)
MODES = ((), (Recompute.LAYERNORM,), (Recompute.MLP,), (Recompute.FULL,))
#: A layout whose seconds with stages of equal work are so much above the best is left out.
LEFT_OUT = 1 / 0.97


@dataclass(frozen=True)
class Part:
    """Pipeline ranks with the same degrees on nodes of one kind."""

    kind: int
    layout: Layout
    ranks: int


@dataclass(frozen=True)
class Found:
    """A layout and its seconds."""

    seconds: float
    parts: tuple[Part, ...] = ()
    layers: tuple[int, ...] = ()


class Degrees:
    """Layouts of a dense model on a cluster, each part of it with degrees of its own."""

    def __init__(self, model: ModelDescription, cluster: TrainingCluster, job: TrainingJob) -> None:
        self.model, self.cluster, self.job = model, cluster, job
        self.prices = [
            job_costs(model, replace(cluster, nodes=(nodes,)), job).prices
            for nodes in cluster.nodes
        ]
        self.room = [nodes.accelerator.memory_bytes for nodes in cluster.nodes]

    def splits(self) -> list[list[tuple[int, int]]]:
        """Return kinds and numbers of devices of the parts."""
        if len(self.cluster.nodes) > 1:
            return [[(k, nodes.devices) for k, nodes in enumerate(self.cluster.nodes)]]
        (nodes,) = self.cluster.nodes
        step = nodes.per_node if nodes.count > 2 else max(1, nodes.devices // 8)
        return [[(0, n), (0, nodes.devices - n)] for n in range(step, nodes.devices, step)]

    def meshes(self, kind: int, devices: int) -> Iterator[Part]:
        """Yield the divisions of a part, without recomputation."""
        for t, c, b in product((1, 2, 4, 8), (1, 2, 4), (1, 2, 3, 4, 8)):
            layout = replace(
                self.job.template, tensor=t, context=c, microbatch=b, sequence_parallel=t > 1
            )
            try:
                check_heads(self.model, layout)
            except InputError:
                continue
            for p in range(1, min(devices, self.model.layers) + 1):
                d = devices // (t * c * p)
                whole = t * c * p * d == devices and t <= self.cluster.nodes[kind].per_node
                if whole and self.job.global_batch % (b * d) == 0:
                    yield Part(kind, replace(layout, data=d), p)

    def best(self, *, alike: bool) -> Found:
        """Return the best layout found, with the same degrees in all parts, or with any."""
        listed: list[tuple[float, int, tuple[Part, ...]]] = []
        for split in self.splits():
            every = [list(self.meshes(*part)) for part in split]
            for meshes in product(*every):
                sizes = {part.layout.microbatch * part.layout.data for part in meshes}
                if len(sizes) > 1 or (alike and len({part.layout for part in meshes}) > 1):
                    continue
                m, ranks = self.job.global_batch // sizes.pop(), sum(one.ranks for one in meshes)
                if ranks > self.model.layers:
                    continue
                copies = any(part.layout.replicas > 1 for part in meshes)
                for mode, zero in product(MODES, (0, 1) if copies else (0,)):
                    parts = tuple(
                        replace(one, layout=replace(one.layout, recompute=mode, zero=zero))
                        for one in meshes
                    )
                    listed.append((self._equal_work(parts) * (m + ranks - 1), m, parts))
        found = Found(math.inf)
        for seconds, m, parts in sorted(listed, key=lambda one: one[0]):
            if seconds > found.seconds * LEFT_OUT:
                break
            found = min(found, self._divided(m, parts), key=lambda one: one.seconds)
        return found

    def _both(self, part: Part) -> tuple[float, float, float]:
        """Return both passes of a layer, of the embedding and of the head."""
        times = self.prices[part.kind].times(part.layout)
        layer, first, last = times.recomputed[0], times.embedding, times.head
        return (
            layer.forward + layer.backward, first.forward + first.backward,
            last.forward + last.backward,
        )  # fmt: skip

    def _equal_work(self, parts: Sequence[Part]) -> float:
        """Return the seconds of a stage if the ranks' work for a microbatch were equal."""
        each = [self._both(part) for part in parts]
        layers = self.model.layers + each[0][1] / each[0][0] + each[-1][2] / each[-1][0]
        return layers / sum(part.ranks / one[0] for part, one in zip(parts, each, strict=True))

    def _divided(self, m: int, parts: tuple[Part, ...]) -> Found:
        """Return the best division into stages that moves of single layers find."""
        ranks = sum(part.ranks for part in parts)
        own = [part for part in parts for _ in range(part.ranks)]
        layouts = [replace(part.layout, pipeline=ranks) for part in own]
        most = [self._most(own[k].kind, layouts, k) for k in range(ranks)]
        if min(most) < 1 or sum(most) < self.model.layers:
            return Found(math.inf)
        speed = np.array([1 / self._both(part)[0] for part in own])
        counts = [1] * ranks
        for _ in range(self.model.layers - ranks):
            after = [(n + 1) / v if n < cap else math.inf
                     for n, v, cap in zip(counts, speed, most, strict=True)]  # fmt: skip
            counts[int(np.argmin(after))] += 1
        seconds = self._seconds(m, own, layouts, [counts])[0]
        while True:
            near = []
            for i, j in permutations(range(ranks), 2):
                if counts[i] > 1 and counts[j] < most[j]:
                    near.append([n - (k == i) + (k == j) for k, n in enumerate(counts)])
            takes = self._seconds(m, own, layouts, near) if near else np.array([math.inf])
            if takes.min() >= seconds * (1 - 1e-9):
                return Found(float(seconds), parts, tuple(counts))
            counts, seconds = near[int(takes.argmin())], takes.min()

    def _most(self, kind: int, layouts: list[Layout], rank: int) -> int:
        """Return the most layers that a rank has the bytes for."""
        ranks, low = len(layouts), 0
        high = self.model.layers - (ranks - 1)
        while low < high:
            middle = (low + high + 1) // 2
            counts = [0] * ranks
            counts[rank - 1] = self.model.layers - middle  # no matter where
            counts[rank] = middle if ranks > 1 else self.model.layers
            whole = replace(layouts[rank], stage_layers=tuple(counts))
            fits = rank_memory(self.model, whole, rank).needed <= self.room[kind]
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _seconds(
        self, m: int, own: list[Part], layouts: list[Layout], divisions: list[list[int]]
    ) -> Floats:
        """Return the seconds of an iteration under each of some divisions into stages."""
        ranks = len(own)
        known: dict[tuple[int, int], tuple[float, ...]] = {}
        passes, after = np.zeros((3, ranks, len(divisions))), np.zeros(len(divisions))
        for a, counts in enumerate(divisions):
            beside = []
            for k, n in enumerate(counts):
                if (k, n) not in known:
                    known[k, n] = self._stage(self.prices[own[k].kind], layouts[k], k, n)
                passes[:, k, a] = known[k, n][:3]
                beside.append(known[k, n][3:])
            after[a] = np.max(beside, axis=0).sum()
        links, moved = self.prices[0].calibration.links, 0.0
        far = 1 if self.cluster.devices <= self.cluster.domain else self.cluster.domain
        for one, two in pairwise(layouts):
            whole = 2.0 * one.microbatch * one.data * one.sequence * self.model.hidden
            few = min(side.tensor * side.context * side.data for side in (one, two))
            moved = max(moved, message(whole / few, far, self.cluster, links))
        shape = PipelineShape("1f1b", ranks, 1, m)
        path = longest_path(shape, *passes, np.full(len(divisions), moved))
        return np.asarray(path + after + max(one.calibration.step for one in self.prices))

    def _stage(
        self, prices: LayerPrices, layout: Layout, rank: int, layers: int
    ) -> tuple[float, ...]:
        """Return a stage's passes, and its replicas' traffic and optimizer's step behind them."""
        model, last = self.model, rank == layout.pipeline - 1
        blocks = [block_held(block, model.hidden, layout) for block in model.layer_types]
        parts = StageParts((0,) * layers, layers * bool(layout.recompute), rank == 0, last, False)
        held = stage_held(model, layout, rank, parts.layers, blocks)
        one = stage_time(layout, prices, prices.times(layout), held, parts)
        traffic = exposed_traffic(layout, prices, [one])
        dense, routed = optimizer_rates(layout, prices)[rank]
        step = dense * held.shared + routed * held.routed
        return one.forward, one.backward, one.weights, traffic, step


def row_of(name: str, spec: str, batch: int, recipe: str | None) -> dict[str, str]:
    """Return the row of a case."""
    model, cluster = shipped_model(name), training_cluster(spec)
    job = TrainingJob(global_batch=batch, sequence=SEQUENCE, recipe=recipe)
    plan = solve_job(model, cluster, job, limits=LIMITS).plan
    assert plan is not None, spec
    begin = time.process_time()
    degrees = Degrees(model, cluster, job)
    same, free = degrees.best(alike=True), degrees.best(alike=False)
    least = min(plan.seconds, same.seconds)
    split = "; ".join(f"PP {part.ranks}, {describe(part.layout)}" for part in free.parts)
    return {
        "model": name, "cluster": spec, "global_batch": str(batch),
        "planned_s": f"{plan.seconds:.4f}", "gap": f"{plan.gap:.5f}",
        "same_degrees_s": f"{same.seconds:.4f}", "by_stage_s": f"{free.seconds:.4f}",
        "saves_percent": f"{100 * max(0.0, 1 - free.seconds / least):.2f}",
        "layout": describe(plan.layout), "layers": " ".join(map(str, plan.layout.stage_layers)),
        "by_stage": split, "by_stage_layers": " ".join(map(str, free.layers)),
        "cpu_s": f"{time.process_time() - begin:.1f}",
    }  # fmt: skip


def main() -> None:
    """Measure every case, and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose model and cluster have this")
    asked = parser.parse_args()
    rows = []
    for name, spec, batch, recipe in CASES:
        if asked.only in f"{name} {spec}":
            rows.append(row_of(name, spec, batch, recipe))
            print(*rows[-1].values(), file=sys.stderr, flush=True)
    if not asked.only:
        results.write("job_degrees", rows, "")


if __name__ == "__main__":
    main()
