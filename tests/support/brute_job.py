"""Small training jobs, and all their plans one by one, without anything that the search uses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stagecut.instances import InputError
from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layers import LayerPrices
from stagecut.instances.costs.layout import JobSchedule, Layout, Recompute, check_layout
from stagecut.instances.costs.memory import peak_memory
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.job.problem import TrainingJob
from stagecut.runtime.estimate import iteration_times


def small_job(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
    """Return a model of a few layers, not all of one type at times, and a job on a few devices."""
    base = shipped_model(
        draw.choice(("llama3.2-1b", "mixtral-8x7b", "gpt2-xl", "deepseek-v2-lite"))
    )
    layers = draw.randint(2, 5)
    blocks = base.blocks[:layers]
    if base.name == "deepseek-v2-lite":
        blocks = base.blocks[: draw.randint(1, 2)] + base.blocks[-1:] * (layers - 1)
    model = replace(base, name="small", blocks=tuple(blocks[:layers]))
    devices = draw.choice((1, 2, 4))
    cluster = training_cluster(f"{draw.choice(('h100', 'a100'))}:{devices}")
    launcher = draw.choice(("megatron", "any", "torchtitan", "deepspeed"))
    job = TrainingJob(
        global_batch=draw.choice((2, 4, 8)),
        sequence=draw.choice((1024, 2048)),
        launcher=launcher,
        microbatch=draw.choice(((1,), (1, 2), (2,))),
        zero={"torchtitan": (2, 3), "deepspeed": (0, 1), "any": (1, 2), "megatron": 1}[launcher],
    )
    return model, cluster, job


def all_layouts(
    model: ModelDescription, cluster: TrainingCluster, job: TrainingJob
) -> Iterator[Layout]:
    """Yield every plan of the declared space: outer points, stages and recomputed layers."""
    n, template = cluster.devices, job.template
    degrees = range(1, n + 1)
    modes = sorted({frozenset[Recompute](), *job.modes}, key=sorted)
    for t, c, p, d, e, b, v in itertools.product(
        degrees, degrees, degrees, degrees, degrees, job.allowed("microbatch") or (1,),
        range(1, 1 + model.layers),
    ):  # fmt: skip
        if t * c * p * d != n or (c > 1 and c > job.sequence // 1024):
            continue
        for schedule, z, mode in itertools.product(job.orders, (0, 1, 2, 3), modes):
            if (p == 1 or v > 1) and (schedule is not JobSchedule.INTERLEAVED) and v > 1:
                continue
            if p == 1 and schedule is not JobSchedule.ONE_F_ONE_B:
                continue
            if schedule is JobSchedule.INTERLEAVED and v == 1:
                continue
            layout = replace(
                template, tensor=t, context=c, pipeline=p, data=d, expert=e, microbatch=b,
                chunks=v, schedule=schedule, zero=z, recompute=mode,
                sequence_parallel=job.settings.sequence_parallel and t > 1,
            )  # fmt: skip
            if not job.allows(layout) and mode:
                continue
            if not job.allows(replace(layout, recompute=frozenset())):
                continue
            try:
                check_layout(model, layout, cluster)
            except InputError:
                continue
            yield from with_stages(model, job, layout)


def with_stages(model: ModelDescription, job: TrainingJob, layout: Layout) -> Iterator[Layout]:
    """Yield a layout with every division into stages, and every number of recomputed layers."""
    layers, stages = model.layers, layout.stages
    ends = 2 + len(model.mtp)
    if layout.chunks > 1 and not any((layers + k) % stages == 0 for k in range(ends + 1)):
        return
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        counts = np.diff([0, *cuts, layers]).tolist()
        if layout.chunks > 1:
            units = list(counts)
            units[0] += 1
            units[-1] += ends - 1
            low, high = layers // stages, -(-(layers + ends) // stages)
            inner = all(
                (max(low, 1) <= u or n == 1) and (u <= high or n == 1)
                for u, n in zip(units, counts, strict=True)
            )
            if not inner:
                continue
        one = replace(layout, stage_layers=tuple(counts))
        if not job.counts_layers(layout.recompute):
            yield one
            continue
        for again in itertools.product(*(range(count + 1) for count in counts)):
            yield replace(one, recompute_layers=again)


def best_of_all(
    model: ModelDescription, cluster: TrainingCluster, job: TrainingJob, limit: float
) -> tuple[float, dict[Layout, float]]:
    """Return the least seconds of all plans within so many bytes, and the least of each point."""
    layouts = list(all_layouts(model, cluster, job))
    prices = LayerPrices(
        model, cluster, calibration(cluster.accelerator.family, job.settings.software)
    )
    best: dict[Layout, float] = {}
    for layout, time in zip(layouts, iteration_times(layouts, prices), strict=True):
        if peak_memory(model, layout).needed <= limit:
            point = replace(layout, stage_layers=(), recompute_layers=None)
            best[point] = min(best.get(point, np.inf), time.seconds)
    return min(best.values(), default=np.inf), best
