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
from stagecut.instances.costs.description import Block, Measured, ModelDescription, ProfiledLayer
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layers import LayerPrices
from stagecut.instances.costs.layout import OFFLOAD, JobSchedule, Layout, Recompute, check_layout
from stagecut.instances.costs.memory import rank_memory
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
    return _long_enough(model, job), cluster, job


def _long_enough(model: ModelDescription, job: TrainingJob) -> ModelDescription:
    """Return a model whose learned positions, if it has any, are enough for a job's sequences."""
    longest = max(model.positions, job.sequence) if model.positions else 0
    return replace(model, positions=longest)


#: Models with an encoder, tied embeddings, further predictions, alternating types, wide experts.
_ODD = ("t5-3b", "gpt2", "deepseek-v3", "gemma3-1b", "llama4-scout", "qwen2.5-0.5b", "gpt-oss-20b")


def odd_job(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
    """Return a job that is unlike `small_job`'s: odd batches, nodes, encoders."""
    base = shipped_model(draw.choice(_ODD))
    layers = draw.randint(1, 4)
    encoder = base.encoder[: draw.randint(1, 2)]
    blocks = tuple(draw.choice((base.blocks[0], base.blocks[-1])) for _ in range(layers))
    if draw.random() < 0.5:
        blocks = base.blocks[:layers]
    model = replace(base, name="odd", blocks=blocks, encoder=encoder)
    devices = draw.choice(("1", "2", "3", "4", "2x2", "1x2", "1x3"))
    cluster = training_cluster(f"{draw.choice(('h100', 'a100'))}:{devices}")
    launcher = draw.choice(("stagecut", "stagecut", "megatron", "any", "torchtitan", "deepspeed"))
    job = TrainingJob(
        global_batch=draw.choice((1, 3, 5, 6, 7, 9)),
        sequence=draw.choice((512, 1500, 2050, 3072)),
        launcher=launcher,
        microbatch=draw.choice(((1,), (1, 3), (2, 1))),
        zero=draw.choice((None, 0, (1, 3))) if launcher != "deepspeed" else None,
        recompute=draw.choice((None, None, (), (frozenset({Recompute.FULL}),))),
    )
    return _long_enough(model, job), cluster, job


def alternating_job(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
    """Return a job of a model whose two types of layers take turns, in a pipeline."""
    base = shipped_model(draw.choice(("gemma3-1b", "llama4-scout", "gpt-oss-20b")))
    two = [next(one for one in base.blocks if one != base.blocks[0]), base.blocks[0]]
    every = draw.choice((2, 3))  # layer of the rarer type
    layers, first = draw.randint(4, 6), draw.randrange(every)
    blocks = tuple(two[(k + first) % every > 0] for k in range(layers))
    job = TrainingJob(
        global_batch=draw.choice((4, 8)), sequence=draw.choice((1024, 4096)),
        launcher=draw.choice(("any", "megatron", "torchtitan")), microbatch=1, tensor=1,
        zero=draw.choice((0, 2)),
    )  # fmt: skip
    return replace(base, name="alternating", blocks=blocks), training_cluster("h100:1x3"), job


def profiled_job(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
    """Return a job of a model that was measured layer by layer, for tensor degrees 1 and 2."""
    types = []
    for _ in range(2):
        forward, kept = draw.uniform(1e-3, 4e-3), draw.uniform(1e8, 1e9)
        measured = tuple(
            Measured(t, forward / t**0.6, 2.1 * forward / t**0.6, 1 / t, kept / t, kept / (6 * t))
            for t in (1, 2)
        )
        types.append(Block(profiled=ProfiledLayer(draw.randint(1, 4) * 10**6, 3e9, measured)))
    blocks = tuple(draw.choice(types) for _ in range(draw.randint(1, 4)))
    base = shipped_model("gpt2")
    model = replace(base, name="profiled", blocks=blocks, vocabulary=0, head=False, tied=False)
    launcher = draw.choice(("stagecut", "megatron", "torchtitan"))
    job = TrainingJob(global_batch=draw.choice((2, 3, 8)), sequence=1, launcher=launcher)
    return model, training_cluster(f"h100:{draw.choice((1, 2, 4))}"), job


def large_job(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
    """Return a job of up to 8 layers on up to 8 devices, of whose degrees some are fixed."""
    base = shipped_model(draw.choice(("llama3.2-1b", "mixtral-8x7b", "deepseek-v2-lite")))
    layers = draw.randint(4, 8)
    first = draw.randint(0, 2) if base.name == "deepseek-v2-lite" else 0
    blocks = base.blocks[:1] * first + base.blocks[-1:] * (layers - first)
    model = replace(base, name="large", blocks=blocks)
    tensor, pipeline, data = draw.choice(
        ((1, 2, 2), (2, 2, 2), (1, 4, 1), (1, 4, 2), (2, 3, 1), (2, 4, 1), (1, 8, 1), (1, 2, 4))
    )
    launcher = draw.choice(("any", "stagecut", "megatron", "torchtitan"))
    job = TrainingJob(
        global_batch=data * draw.choice((1, 2, 3, 4, 8)),
        sequence=1024,
        launcher=launcher,
        microbatch=1,
        tensor=tensor,
        pipeline=min(pipeline, layers),
        zero=draw.choice((0, 1)) if launcher != "torchtitan" else draw.choice((2, 3)),
        recompute=draw.choice((None, ())),
    )
    devices = tensor * min(pipeline, layers) * data
    return model, training_cluster(f"{draw.choice(('h100', 'a100'))}:{devices}"), job


def uneven_job(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
    """Return a job of chunks that cannot be even, of three layers or more in the mean."""
    base = shipped_model(draw.choice(("llama3.2-1b", "mixtral-8x7b", "deepseek-v2-lite")))
    layers, launcher = draw.choice((13, 13, 17)), draw.choice(("any", "megatron", "torchtitan"))
    first = draw.randint(1, 4) if base.name == "deepseek-v2-lite" else 0
    blocks = base.blocks[:1] * first + base.blocks[-1:] * (layers - first)
    vocabulary = draw.choice((32_000, 128_000, 512_000))
    job = TrainingJob(
        global_batch=2 * draw.choice((2, 4, 6)),
        sequence=1024,
        launcher=launcher,
        microbatch=draw.choice((1, 1, None)),
        pipeline=2,
        tensor=1,
        context=1,
        zero=draw.choice((0, 1)) if launcher != "torchtitan" else 2,
        recompute=draw.choice((None, ())) if launcher == "megatron" else (),
    )
    model = replace(base, name="uneven", blocks=blocks, vocabulary=vocabulary)
    return model, training_cluster(f"{draw.choice(('h100', 'a100'))}:{draw.choice((2, 4))}"), job


def sharded_job(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
    """Return a job whose weights are sharded beside collectives of layers, in nodes and across."""
    base = shipped_model(draw.choice(("llama3.2-1b", "mixtral-8x7b", "deepseek-v2-lite")))
    layers = draw.randint(2, 4)
    model = replace(base, name="sharded", blocks=base.blocks[:1] + base.blocks[-1:] * (layers - 1))
    job = TrainingJob(
        global_batch=draw.choice((4, 8)),
        sequence=draw.choice((1024, 2048)),
        launcher=draw.choice(("any", "megatron")),
        microbatch=(1, 2),
        zero=draw.choice((3, 3, (0, 3))),
        recompute=draw.choice((None, ())),
    )
    return model, training_cluster(f"h100:{draw.choice(('4', '2x2', '1x4'))},network=9GB/s"), job


def host_job(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
    """Return a job of which parts may lie in host memory; each kind's link to it may be slow."""
    model, cluster, job = small_job(draw)
    if draw.random() < 0.3:
        model, cluster, job = mixed_job(draw)
    launcher = draw.choice(("any", "any", "megatron", "deepspeed"))
    parts = [draw.choice((0.0, (0.0, 0.5), (0.3, 1.0), (0.0, 1.0))) for _ in OFFLOAD]
    activations, weights, optimizer = parts
    if launcher == "megatron":
        weights = 0.0
    zero = {"deepspeed": (1, 3), "any": (0, 1, 3), "megatron": (1, 3)}[launcher]
    links = (5e9, 25e9, 60e9)
    nodes = tuple(
        replace(one, accelerator=replace(one.accelerator, host_bandwidth=draw.choice(links)))
        for one in cluster.nodes
    )
    job = replace(
        job, launcher=launcher, zero=zero, offload_activations=activations,
        offload_weights=weights, offload_optimizer=optimizer,
    )  # fmt: skip
    return model, replace(cluster, nodes=nodes), job


def mixed_job(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
    """Return a job on two kinds of nodes, whose boundary lies within a pipeline rank at times."""
    model, _, job = small_job(draw)
    counts = draw.choice(((1, 1), (2, 1), (1, 2), (1, 3), (2, 2)))
    kinds = draw.sample(("h100", "a100", "b200"), 2)
    nodes = "+".join(f"{kind}:1x{count}" for kind, count in zip(kinds, counts, strict=True))
    job = replace(job, zero=None if job.launcher == "torchtitan" else job.zero)
    return model, training_cluster(f"{nodes},network=25GB/s,latency=8us"), job


def all_layouts(
    model: ModelDescription, cluster: TrainingCluster, job: TrainingJob
) -> Iterator[Layout]:
    """Yield every plan of the declared space: outer points, stages and recomputed layers."""
    n, template = cluster.devices, job.template
    degrees = range(1, n + 1)
    modes = sorted({frozenset[Recompute](), *job.modes}, key=sorted)
    hosts = list(itertools.product(*(job.parts(name) for name in OFFLOAD)))
    profiled = any(block.profiled is not None for block in model.blocks)
    batches = job.allowed("microbatch") or ((1,) if profiled else (1, 2, 3, 4, 5, 6, 7, 8, 16))
    for t, c, p, d, e, b, v in itertools.product(
        degrees, degrees, degrees, degrees, degrees, batches,
        range(1, 1 + model.layers),
    ):  # fmt: skip
        if t * c * p * d != n or (c > 1 and c > job.sequence // 1024) or t > cluster.per_node:
            continue
        for schedule, z, mode, host in itertools.product(job.orders, (0, 1, 2, 3), modes, hosts):
            if p == 1 and schedule is not JobSchedule.ONE_F_ONE_B:
                continue
            if schedule is JobSchedule.INTERLEAVED and v == 1:
                continue
            layout = replace(
                template, tensor=t, context=c, pipeline=p, data=d, expert=e, microbatch=b,
                chunks=v, schedule=schedule, zero=z, recompute=mode,
                sequence_parallel=job.settings.sequence_parallel and t > 1,
                **dict(zip(OFFLOAD, host, strict=True)),
            )  # fmt: skip
            if not job.allows(model, layout):
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
    divides = any((layers + k) % stages == 0 for k in range(ends + 1))
    if layout.chunks > 1 and not divides and layers < 3 * stages:
        return
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        counts = np.diff([0, *cuts, layers]).tolist()
        if layout.chunks > 1:
            beside = [1, *[0] * (stages - 2), ends - 1]  # what counts as layers, by stage
            low, high = layers // stages, -(-(layers + ends) // stages)
            if not all(
                max(low - k, 1) <= n <= max(high - k, low - k, 1)
                for n, k in zip(counts, beside, strict=True)
            ):
                continue
        one = replace(layout, stage_layers=tuple(counts))
        yield one
        if not job.counts_layers(replace(layout, recompute_layers=0)):
            continue
        if not job.settings.recompute_by_stage:
            yield from (replace(one, recompute_layers=k) for k in range(min(counts) + 1))
            continue
        for again in itertools.product(*(range(count + 1) for count in counts)):
            yield replace(one, recompute_layers=again)


def point_of(layout: Layout) -> Layout:
    """Return the outer point of a plan; 0 recomputed layers stand for an open number."""
    counted = None if layout.recompute_layers is None else 0
    return replace(layout, stage_layers=(), recompute_layers=counted)


def bytes_needed(model: ModelDescription, layout: Layout) -> float:
    """Return the bytes of the fullest pipeline rank, each looked at."""
    return max(rank_memory(model, layout, rank).needed for rank in range(layout.pipeline))


def rank_fits(
    model: ModelDescription, cluster: TrainingCluster, layout: Layout, limit: float
) -> bool:
    """Whether each pipeline rank's bytes fit every device that it lies on, of `limit` at most."""
    sizes = [
        nodes.accelerator.memory_bytes for nodes in cluster.nodes for _ in range(nodes.devices)
    ]
    each = layout.tensor * layout.context * layout.data  # neighbours of one pipeline rank
    return all(
        rank_memory(model, layout, rank).needed <= min(limit, *sizes[rank * each :][:each])
        for rank in range(layout.pipeline)
    )


def unlike_memory(draw: random.Random, cluster: TrainingCluster, most: float) -> TrainingCluster:
    """Return a cluster of which each kind of devices has `most` bytes, or a part of them."""
    nodes = []
    for one in cluster.nodes:
        size = most * draw.choice((1.0, 0.9, 0.7, 0.5))
        nodes.append(replace(one, accelerator=replace(one.accelerator, memory_bytes=size)))
    return replace(cluster, nodes=tuple(nodes))


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
        if rank_fits(model, cluster, layout, limit):
            point = point_of(layout)
            best[point] = min(best.get(point, np.inf), time.seconds)
    return min(best.values(), default=np.inf), best
