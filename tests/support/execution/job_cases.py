"""A small transformer, and training jobs on it by layouts, for `run_job`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from ranks import DEVICE
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from stagecut import InputError, Layout, StagecutError
from stagecut.instances.costs.layout import Recompute
from stagecut.runtime.execution import steps as rank_steps
from stagecut.runtime.execution.attention import copied_heads
from stagecut.runtime.execution.job.context import divided_attention, positions_of
from stagecut.runtime.execution.job.parallelize import ParallelizePlan, job_mesh, lines_of
from stagecut.runtime.execution.job.run import (
    restore_job,
    run_job,
    save_job,
    train_job,
)
from stagecut.runtime.execution.job.running import RunningJob, loss_alone
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.measure.group import rank_device

#: Number formats of attention on CPUs, and of its flash kernel on GPUs.
EXACT, COARSE = torch.float32, torch.bfloat16

#: Layout fields, and options: of the model, and of its run.
Job = tuple[dict[str, Any], dict[str, Any]]

WORDS, WIDTH, HEADS, TOKENS, BATCH = 32, 16, 4, 8, 8
#: Fields of all layouts here.
BATCHES: dict[str, Any] = {"global_batch": BATCH, "sequence": TOKENS, "recipe": "fp32"}

PIPELINE: Any = {"pipeline": 2, "microbatch": 2}
SHARDED: Any = {"data": 2, "zero": 3, "microbatch": 2}
SEQUENCES: Any = {"context": 2, "context_kind": "all-gather", "zero": 3, "microbatch": 2}
TENSOR: Any = {"tensor": 2, "sequence_parallel": True, "microbatch": 2}
EXPERTS: Any = {"data": 2, "expert": 2, "zero": 3, "microbatch": 2}
#: Pairs of layouts: what trains first, and what resumes it.
PAIRS: dict[str, tuple[tuple[Any, Any], tuple[Any, Any]]] = {
    "pipeline to data": ((PIPELINE, {}), (SHARDED, {})),
    "data to tensor": ((SHARDED, {}), (TENSOR, {})),
    "tensor to zb-v": (
        (TENSOR, {}), ({**PIPELINE, "chunks": 2}, {"schedule": "zb-v"}),
    ),
    "experts beside tensor to experts": (
        ({"tensor": 2, "sequence_parallel": True, "expert": 2, "microbatch": 2}, {"experts": True}),
        (EXPERTS, {"experts": True}),
    ),
    "experts to pipeline": ((EXPERTS, {"experts": True}), (PIPELINE, {"experts": True})),
    "pipeline to experts": ((PIPELINE, {"experts": True}), (EXPERTS, {"experts": True})),
    "context to tensor": (
        (SEQUENCES, {"placed": True}), ({"tensor": 2, "microbatch": 2}, {"placed": True}),
    ),
    "data to context": ((SHARDED, {"placed": True}), (SEQUENCES, {"placed": True})),
    "tied over stages to one": ((PIPELINE, {"tied": True}), (TENSOR, {"tied": True})),
    "tied on one to stages": ((SHARDED, {"tied": True}), (PIPELINE, {"tied": True})),
    "tied to stages on one rank": (
        (TENSOR, {"tied": True}), ({**PIPELINE, "chunks": 2}, {"schedule": "zb-v", "tied": True}),
    ),
    "the same": ((SHARDED, {}), (SHARDED, {})),
}  # fmt: skip


#: Steps of a run that is resumed after its first: what the second changes shows in the third.
RESUMED = 3


def of_two_microbatches(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a layout with two microbatches instead of four where each has the same collectives."""
    return fields if {"pipeline", "data"} & fields.keys() else {**fields, "microbatch": BATCH // 2}


class Attention(nn.Module):
    """Causal attention of as many heads as its projections make."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.q_norm = nn.RMSNorm(WIDTH // HEADS)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for y in (self.q(x), self.k(x), self.v(x))
        )
        y = F.scaled_dot_product_attention(self.q_norm(q), k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Gated."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Four of them, which take tokens in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, WIDTH, 2 * WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(4, 2 * WIDTH, WIDTH) / 4)

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        parts = tokens.split(counts.tolist())
        made = [F.relu(x @ u) @ d for x, u, d in zip(parts, self.up, self.down, strict=True)]
        return torch.cat(made)


class MixtureOfExperts(nn.Module):
    """Two experts for each token, none dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 4, bias=False), Experts()

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores, chosen = self.router(tokens).topk(2)
        order = chosen.flatten().argsort(stable=True)
        made = self.experts(tokens[order // 2], chosen.flatten().bincount(minlength=4))
        weighed = made * scores.softmax(-1).flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // 2, weighed).view_as(x)


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each behind a norm, beside a residual."""

    #: Forward passes of this process's blocks, those that are computed again included.
    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        TransformerBlock.passes += 1
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Embedding, blocks, norm and head, whose weight is the embedding's if `tied`."""

    def __init__(self, layers: int, tied: bool) -> None:
        super().__init__()
        self.placed = False
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(TransformerBlock() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            where = torch.arange(x.shape[1], device=x.device)
            x = layer(x + waves(where)) if self.placed else layer(x)
        return self.head(self.norm(x))


def waves(positions: Tensor) -> Tensor:
    """Return what says where tokens are."""
    return torch.sin(positions[:, None] * torch.arange(1, WIDTH + 1, device=positions.device) / 3)


def mixed(model: Transformer) -> Transformer:
    """Give every second block a mixture of experts."""
    for layer in model.layers[1::2]:
        layer.mlp = MixtureOfExperts()
    return model


PLAN = ParallelizePlan(
    colwise=("layers.*.attention.[qkv]", "layers.*.mlp.gate", "layers.*.mlp.up", "head"),
    rowwise=("layers.*.attention.out", "layers.*.mlp.down", "embedding"),
    experts=("layers.*.mlp.experts",),
    recomputed={Recompute.MLP: ("layers.*.mlp",)},
)
#: The same for a model whose blocks are told where tokens are.
PLACED = replace(PLAN, call=lambda stage, block, x: block(x + waves(stage.positions)))


def make_transformer(tied: bool = False, layers: int = 4, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(layers, tied)


def batches(steps: int = 2) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    words = [torch.randint(0, WORDS, (BATCH, TOKENS + 1), generator=draw) for _ in range(steps)]
    return [(x[:, :-1], x[:, 1:]) for x in words]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2, eps=1e-3)


def alone(
    tied: bool = False,
    placed: bool = False,
    experts: bool = False,
    steps: int = 2,
    layers: int = 4,
) -> dict[str, Any]:
    """Return losses, norms and the first step's gradients of one process without stagecut."""
    model = make_transformer(tied, layers)
    model = mixed(model) if experts else model
    model.placed = placed
    optimizer = adam(model.parameters())
    losses, norms, gradients = [], [], {}
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        named = model.named_parameters(remove_duplicate=False)
        gradients = gradients or {n: p.grad.clone() for n, p in named if p.grad is not None}
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "norms": norms, "gradients": gradients}


def seen_by(look: Callable[[RunningJob], None], job: RunningJob) -> RunningJob:
    """Return a job that shows itself after each backward pass, before gradients are clipped."""
    step = job.step

    def shown(tokens: Tensor, targets: Tensor) -> float:
        loss = step(tokens, targets)
        look(job)
        return loss

    job.step = shown  # type: ignore[method-assign]
    return job


def job_rank(_rank: int, jobs: list[Job]) -> list[dict[str, Any]]:
    """Run jobs one after the other: layout fields, and options; return what `alone` does."""
    found = []
    for fields, options in jobs:
        gradients: dict[str, Tensor] = {}

        def keep(job: RunningJob, gradients: dict[str, Tensor] = gradients) -> None:
            if not gradients:
                TransformerBlock.passes = 0  # torch's pipelining finds out shapes in the first step
                for stage in job.stages.values():
                    for name, p in stage.named_parameters(remove_duplicate=False):
                        gradients[name] = whole(p.grad).clone()

        job, given = make_job(fields, options)
        chosen = RunOptions(steps=None, optimizer=adam, clip=0.05, **given)
        run = train_job(seen_by(keep, job), batches(), chosen)
        found.append(
            {"losses": run.losses, "norms": run.norms, "gradients": gradients,
             "passes": TransformerBlock.passes}
        )  # fmt: skip
    return found


def evaluated(_rank: int, fields: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Return twice of a job of eight blocks: loss evaluated, loss of a step, norm of gradients."""
    (x, y), *_ = batches()
    layout = Layout(**{**BATCHES, **fields})
    job = RunningJob(make_transformer(layers=8), PLAN, layout, device=rank_device())
    return [(job.evaluate(x, y), job.step(x, y), job.clip_gradients(1e9)) for _ in range(2)]


def make_job(fields: dict[str, Any], options: dict[str, Any]) -> tuple[RunningJob, dict[str, Any]]:
    """Return a job of layout fields and options, and the options that are for its run."""
    given = dict(options)
    model = make_transformer(given.pop("tied", False), given.pop("layers", 4))
    model = mixed(model) if given.pop("experts", False) else model
    plan = PLACED if given.pop("placed", False) else PLAN
    layout = Layout(**{**BATCHES, **fields})
    job = RunningJob(
        model, plan, layout, device=rank_device(), schedule=given.pop("schedule", None)
    )
    return job, given


def resumed(_rank: int, pairs: list[tuple[Job, Job]], folder: str) -> list[dict[str, Any]]:
    """Train a step under one layout, and go on for all others under another one.

    Returns
    -------
    list of dict
        For each pair: whether weights and moments are those that were kept, to the bit, and the
        losses of the second layout.
    """
    found = []
    for number, pair in enumerate(pairs):
        kept: list[dict[str, Any]] = []
        losses: tuple[float, ...] = ()
        for resume, (fields, options) in enumerate(pair):
            job, given = make_job(fields, options)
            optimizers: list[torch.optim.Optimizer] = []

            def kept_adam(groups: Any, all_of: Any = optimizers) -> torch.optim.Optimizer:
                all_of.append(adam(groups))
                return all_of[-1]

            def look(job: RunningJob, all_of: Any = optimizers, kept: Any = kept) -> None:
                if all_of[0].state:  # of a resumed one, before its step changes it
                    kept.append(full_state(job, all_of))

            chosen = RunOptions(
                steps=None, optimizer=kept_adam, clip=0.05, resume=bool(resume),
                checkpoint=Path(folder, str(number)), **given,
            )  # fmt: skip
            steps = RESUMED if resume else 1
            losses = train_job(seen_by(look, job), batches(steps), chosen).losses
            if not resume:
                kept.append(full_state(job, optimizers))
        same = kept[0].keys() == kept[1].keys() and all(
            np.array_equal(kept[0][name], kept[1][name]) for name in kept[0]
        )
        found.append({"same": same, "losses": losses})
    return found


def whole(x: Tensor) -> Tensor:
    """Return a tensor of which this rank may have a part."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def full_state(job: RunningJob, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    """Return weights and moments of all ranks by name."""
    own = {}
    first_of = {name: first for first, *others in job.ties for name in others}
    for stage, optimizer in zip(job.stages.values(), optimizers, strict=True):
        for name, p in stage.named_parameters():
            for what, value in (("", p), *optimizer.state[p].items()):
                array = whole(value).detach().cpu().numpy()  # in pickles, a tensor takes longer
                own[f"{first_of.get(name, name)} {what}"] = array.copy()
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, own)
    return {name: x for each in everywhere for name, x in each.items()}


def resumed_by_another_batch(_rank: int, folder: str) -> tuple[list[int], str]:
    """Return which batches of four a job takes behind three of eight, and why none of twelve."""
    taken: list[int] = []

    def numbered(size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(9):
            taken.append(number)
            yield torch.zeros(size, TOKENS).long(), torch.zeros(size, TOKENS).long()

    for size, steps in ((8, 3), (4, 5), (12, 6)):
        layout = Layout(**{**BATCHES, "global_batch": size})
        job = RunningJob(make_transformer(), PLAN, layout, device=rank_device())
        options = RunOptions(steps=steps, optimizer=adam, checkpoint=Path(folder), resume=size != 8)
        try:
            train_job(job, numbered(size), options)
        except InputError as error:
            return taken, str(error)
    return taken, "it is taken"


def random_numbers_kept(_rank: int, folder: str) -> list[bool]:
    """Return whether a job goes on with the random numbers kept, by its layout and another."""
    found = []
    for fields in ({}, {}, {"microbatch": 4}):
        job, _ = make_job(fields, {})
        optimizers = [adam(job.parameter_groups(s)) for s in job.stages]
        path = Path(folder, "step-00000000")
        if not path.exists():
            save_job(path, job, optimizers)
            drawn = torch.rand(4)
            continue
        torch.manual_seed(7)
        restore_job(path, job, optimizers)
        found.append(torch.equal(torch.rand(4), drawn))
    return found


def run_rank(rank: int, devices: int, alike: bool = True, together: bool = True) -> Any:
    """Run a job as under torchrun; return what one process has of the first batch, and losses.

    Of a job that is refused, return why. All ranks make one model if they make it `alike`,
    and take the same batches `together`.
    """
    layout = Layout(data=devices, global_batch=BATCH, sequence=TOKENS, recipe="fp32", zero=3)
    seen = loss_alone(make_transformer(), PLACED, *batches()[0])
    try:
        run = run_job(
            lambda: make_transformer(seed=0 if alike else rank),
            PLACED, layout, batches()[0 if together else rank :], optimizer=adam, device=DEVICE,
        )  # fmt: skip
    except InputError as error:
        return str(error)
    return seen, run.losses


def norm_of_head_before_embedding(_rank: int) -> float:
    """Return the norm of the first step of a model that makes its tied head first."""
    model = make_transformer(tied=True)
    model._modules = {n: model._modules[n] for n in ("head", "embedding", "layers", "norm")}
    job = RunningJob(model, PLAN, Layout(**BATCHES), device=rank_device())
    job.step(*batches()[0])
    return job.clip_gradients(1e9)


def frozen_modes(_rank: int) -> list[bool]:
    """Return the modes of a job's blocks after an evaluation; its second one is frozen."""
    model = make_transformer()
    model.layers[1].eval()
    job = RunningJob(model, PLAN, Layout(**BATCHES), device=rank_device())
    job.evaluate(*batches()[0])
    return [block.training for block in model.layers]


def partly_ignored() -> tuple[Tensor, Tensor]:
    """Return a batch of which many targets are ignored, of some microbatches all."""
    (x, y), *_ = batches(1)
    y = y.clone()
    y[:3], y[5, 2:] = -100, -100
    return x, y


def ignoring(_rank: int, cases: list[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """Return of jobs on such a batch: loss evaluated, loss of a step, norm of gradients."""
    found = []
    for fields in cases:
        job, _ = make_job(fields, {"placed": True})
        batch = partly_ignored()
        found.append((job.evaluate(*batch), job.step(*batch), job.clip_gradients(1e9)))
    return found


def frozen(_rank: int, fields: dict[str, Any]) -> list[bool]:
    """Return whether norms without gradients stay as they are where others are added up."""
    model = make_transformer()
    norms = [part for part in model.modules() if isinstance(part, nn.RMSNorm)]
    for part in norms:
        part.requires_grad_(False)
    job = RunningJob(model, PLAN, Layout(**{**BATCHES, **fields}), device=rank_device())
    before = {name: whole(p).detach().clone() for name, p in job.named_parameters()}
    decaying = [torch.optim.AdamW(job.parameter_groups(s), weight_decay=0.1) for s in job.stages]
    job.step(*batches()[0])
    for optimizer in decaying:
        optimizer.step()
    return [
        bool(torch.equal(before[name], whole(p)) == (not p.requires_grad))
        for name, p in job.named_parameters()
    ]


def unlike(rank: int, what: str) -> str:
    """Return why a job is refused of which each rank has a rate, a device or seed of its own."""
    layout = Layout(tensor=2, global_batch=BATCH, sequence=TOKENS, recipe="fp32")

    def make() -> Transformer:
        model = make_transformer()
        if what == "seed":
            model.layers[0].mlp_norm = nn.Sequential(nn.LayerNorm(WIDTH), nn.Dropout(0.1))
            torch.manual_seed(rank)
        return model

    if what == "device" and rank:
        rank_steps.choose_device = lambda _: torch.device("meta")
    try:
        run_job(
            make, PLAN, layout, batches(), optimizer="sgd",
            learning_rate=0.1 * (1 + rank * (what == "rate")), device=DEVICE,
        )  # fmt: skip
    except StagecutError as error:
        return str(error)
    return "it runs"


def killed(rank: int, folder: str) -> None:
    """Run a job that keeps every step, of which rank 1 is killed before the third one."""

    def failing() -> Iterator[tuple[Tensor, Tensor]]:
        for number, batch in enumerate(batches(8)):
            if number == 2 and rank == 1:  # fetched before the third step
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    run_job(
        make_transformer, PLAN, Layout(pipeline=2, microbatch=2, **BATCHES), failing(),
        optimizer=adam, device=DEVICE, checkpoint=Path(folder), every=1, timeout_s=60.0,
    )  # fmt: skip


def groups(_rank: int, cases: list[dict[str, Any]]) -> list[dict[str, list[list[int]]]]:
    """Return the ranks of all groups by axis of layouts on eight processes, of which one is here.

    Of context and experts it is the group of this process alone.
    """
    found = []
    for fields in cases:
        dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
        mesh = job_mesh(Layout(**fields), "cpu")
        own = {
            "tensor": lines_of(mesh.mesh, "tensor"),
            "pipeline": lines_of(mesh.mesh, "pipeline"),
            "replicas": lines_of(mesh.mesh, "replicate", "shard"),
        }
        if mesh.context is not None:
            own["context"] = [mesh.context.mesh.tolist()]
        if mesh.experts is not None:
            own["expert"] = [mesh.experts["expert"].mesh.tolist()]
        found.append(own)
        dist.destroy_process_group()
    return found


def attended(
    rank: int, kind: str, cases: list[tuple[bool, int, int]]
) -> list[tuple[float, list[int]]]:
    """Return how far attention to parts of sequences is from that to whole ones.

    Cases are causal or not, heads of keys, and width of values. Errors, of gradients too, are
    relative to the largest number, on GPUs in 16 bits. The other numbers are the elements of the
    masks that are kept.
    """
    world, found = dist.get_world_size(), []
    place = rank_device()
    mesh = dist.init_device_mesh(place.type, (world,))
    layout = Layout(context=world, context_kind=kind, sequence=4 * world)
    own = positions_of(layout, rank).to(place)
    order = torch.cat([positions_of(layout, part) for part in range(world)]).argsort().to(place)
    for causal, heads, width in cases:
        torch.manual_seed(0)
        given = [
            torch.randn(2, h, 4 * world, w).to(place, EXACT if place.type == "cpu" else COARSE)
            for h, w in ((4, 6), (heads, 6), (heads, width))
        ]
        results, kept = [], {}

        def keep(x: Tensor, kept: Any = kept) -> Tensor:
            if x.ndim == 2:
                kept[x.untyped_storage().data_ptr()] = x.numel()
            return x

        for mine in (slice(None), own):
            leaves = [x[:, :, mine].requires_grad_() for x in given]
            with ExitStack() as stack:
                if mine is own:
                    stack.enter_context(copied_heads())
                    stack.enter_context(divided_attention(layout, mesh, needed=True))
                    stack.enter_context(saved_tensors_hooks(keep, lambda x: x))
                made = [
                    F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
                    for _ in range(2)
                ][-1]
            made.square().sum().backward()
            results.append([made.detach(), *(x.grad for x in leaves if x.grad is not None)])
        parted = [funcol.all_gather_tensor(x.contiguous(), 2, mesh) for x in results[1]]
        errors = [
            (x - y[:, :, order]).abs().max() / x.abs().max()
            for x, y in zip(results[0], parted, strict=True)
        ]
        found.append((float(torch.stack(errors).max()), list(kept.values())))
    return found


def collectives(_rank: int, fields: list[dict[str, Any]]) -> list[dict[str, int]]:
    """Return how many collectives DTensor has in a step of one microbatch, for each layout."""
    found = []
    for given in fields:
        batch = {"global_batch": BATCH, "microbatch": BATCH, "sequence": TOKENS, "recipe": "fp32"}
        job = RunningJob(
            make_transformer(), PLAN, Layout(**{**batch, **given}), device=rank_device()
        )
        job.step(*batches()[0])
        with CommDebugMode() as seen:
            job.step(*batches()[0])
        counts = {str(kind): count for kind, count in seen.get_comm_counts().items()}
        found.append({k.split(".")[1]: n for k, n in counts.items() if k.startswith("c10d_func")})
    return found
