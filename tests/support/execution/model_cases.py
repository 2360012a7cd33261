"""Small transformers of four families, and training jobs on them by layouts, beside one process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from job_cases import seen_by, whole
from torch import Tensor, nn

from stagecut import Layout
from stagecut.instances.costs.description import (
    Attention,
    Block,
    Experts,
    FeedForward,
    ModelDescription,
    Norm,
)
from stagecut.instances.costs.traffic import CollectiveTraffic, collectives
from stagecut.runtime.execution.job.measured import CollectiveSum
from stagecut.runtime.execution.job.parallelize import materialize
from stagecut.runtime.execution.job.run import train_job
from stagecut.runtime.execution.job.running import RunningJob
from stagecut.runtime.execution.job.transformer import transformer
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.measure.group import rank_device

HIDDEN, WORDS, TOKENS, BATCH, STEPS = 16, 32, 8, 8, 10

_GROUPED = Attention(4, 2, 4)
_LATENT = Attention(4, 4, 4, q_rank=6, kv_rank=8, rope_dim=2)
_DENSE = FeedForward(24)
_MIXED = Experts(4, 2, 12)

#: A model of four blocks for each family.
MODELS = {
    "llama": ModelDescription(
        "llama", HIDDEN, WORDS, (Block(_GROUPED, feed_forward=_DENSE),) * 4
    ),
    "gpt": ModelDescription(
        "gpt", HIDDEN, WORDS,
        (Block(Attention(4, 4, 4, bias=True, output_bias=True),
               feed_forward=FeedForward(32, gated=False, bias=True), norm=Norm.LAYER),) * 4,
        tied=True, positions=TOKENS,
    ),
    "mixtral": ModelDescription(
        "mixtral", HIDDEN, WORDS, (Block(_GROUPED, experts=_MIXED),) * 4
    ),
    "deepseek": ModelDescription(
        "deepseek", HIDDEN, WORDS,
        (Block(_LATENT, feed_forward=_DENSE),
         *(Block(_LATENT, experts=replace(_MIXED, shared_width=12, router_bias=True)),) * 3),
    ),
}  # fmt: skip


Fields = dict[str, Any]
SEQUENCE: Fields = {"tensor": 2, "sequence_parallel": True}

#: Layouts by number of processes: axes alone, in pairs, and in triples.
DENSE: dict[int, tuple[Fields, ...]] = {
    2: (
        {"data": 2},
        {"data": 2, "zero": 2, "recompute": "mlp"},
        {"data": 2, "zero": 3, "recompute": "full", "recompute_layers": 2},
        SEQUENCE,
        {"tensor": 2, "recompute": "layernorm"},
        {"context": 2, "zero": 1},
        {"context": 2, "context_kind": "all-to-all"},
        {"pipeline": 2, "stage_layers": (1, 3)},
        {"pipeline": 2, "chunks": 2, "schedule": "interleaved"},
        {"pipeline": 2, "schedule": "zb-h1"},
        {"context": 2, "context_kind": "ring", "zero": 1, "recompute": "full"},
    ),
    4: (
        {**SEQUENCE, "data": 2, "zero": 3},
        {**SEQUENCE, "pipeline": 2, "recompute": "full", "recompute_layers": (1, 0)},
        {**SEQUENCE, "context": 2},
        {"context": 2, "data": 2, "zero": 3},
        {"context": 2, "pipeline": 2, "recompute": "core_attn"},
        {"data": 2, "pipeline": 2, "zero": 1},
        {"tensor": 2, "pipeline": 2, "chunks": 2, "run_schedule": "zb-v"},
        {"context": 4, "context_kind": "ring"},
        {"context": 2, "context_kind": "ring", "pipeline": 2, "schedule": "zb-h1"},
    ),
    8: (
        {**SEQUENCE, "pipeline": 2, "data": 2, "zero": 1},
        {**SEQUENCE, "context": 2, "data": 2, "zero": 3},
        {"context": 2, "pipeline": 2, "data": 2, "zero": 1},
    ),
}
MIXED: dict[int, tuple[Fields, ...]] = {
    2: (
        {"data": 2, "expert": 2, "zero": 3},
        {"data": 2, "expert": 2, "recompute": "moe"},
        {"pipeline": 2},
        SEQUENCE,
        {**SEQUENCE, "expert": 2},
        {"context": 2, "expert": 2},
        {"context": 2, "context_kind": "ring", "expert": 2},
    ),
    4: (
        {"data": 4, "expert": 2, "zero": 2},
        {"data": 2, "pipeline": 2, "expert": 2, "zero": 1},
        {"context": 2, "data": 2, "expert": 4},
        {**SEQUENCE, "data": 2, "zero": 3},
        {**SEQUENCE, "data": 2, "expert": 2, "zero": 3},
        {**SEQUENCE, "data": 2, "expert": 4, "zero": 1},
        {**SEQUENCE, "pipeline": 2, "expert": 2, "recompute": "moe"},
    ),
    8: ({"context": 2, "data": 2, "pipeline": 2, "expert": 4, "zero": 1},),
}


def layouts_of(name: str, world: int) -> tuple[Fields, ...]:
    """Return the layouts that a model is trained under on so many processes."""
    return (DENSE if name in ("llama", "gpt") else MIXED).get(world, ())


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    words = [torch.randint(0, WORDS, (BATCH, TOKENS + 1), generator=draw) for _ in range(steps)]
    return [(x[:, :-1], x[:, 1:]) for x in words]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2, eps=1e-3)


def filled(name: str) -> nn.Module:
    """Return a model on this process alone."""
    model, plan = transformer(MODELS[name])
    materialize(model, plan, (), torch.device("cpu"))
    return model


def alone(name: str, steps: int = STEPS) -> dict[str, Any]:
    """Return losses, and the first step's gradients, of one process without a layout."""
    model = filled(name)
    optimizer = adam(model.parameters())
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        named = model.named_parameters(remove_duplicate=False)
        gradients = gradients or {n: p.grad.clone() for n, p in named}
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "gradients": gradients}


def layout_of(fields: dict[str, Any]) -> Layout:
    given = {
        "global_batch": BATCH,
        "sequence": TOKENS,
        "recipe": "fp32",
        "microbatch": 2,
        "software": "fsdp",
    }
    return Layout(**{**given, "context_kind": "all-gather", **fields})


def model_rank(
    _rank: int, jobs: list[tuple[str, Fields]], steps: int = STEPS
) -> list[dict[str, Any]]:
    """Run jobs one after the other: model and layout fields; return what `alone` does.

    Beside it bytes of the last step's collectives by axis, as they were counted and as planned.
    """
    found = []
    for name, fields in jobs:
        fields = dict(fields)
        schedule = fields.pop("run_schedule", None)
        gradients: dict[str, Tensor] = {}

        def keep(job: RunningJob, gradients: dict[str, Tensor] = gradients) -> None:
            if not gradients:
                for stage in job.stages.values():
                    for key, p in stage.named_parameters(remove_duplicate=False):
                        gradients[key] = whole(p.grad).clone()

        model, plan = transformer(MODELS[name])
        job = RunningJob(model, plan, layout_of(fields), device=rank_device(), schedule=schedule)
        run = train_job(
            seen_by(keep, job),
            batches(steps),
            RunOptions(steps=None, optimizer=adam, clip=0.05, measure=True),
        )
        own = run.measured[dist.get_rank()]
        planned = collectives(MODELS[name], job.layout, own.pipeline_rank)
        sent = {"counted": _by_axis(own.collectives), "planned": _by_axis(planned)}
        found.append({"losses": run.losses, "gradients": gradients, **sent})
    return found


def _by_axis(all_of: Iterable[CollectiveSum | CollectiveTraffic]) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for one in all_of:
        sizes[one.axis] = sizes.get(one.axis, 0.0) + one.size
    return sizes
