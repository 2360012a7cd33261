"""A small transformer, and training jobs on it by layouts, for `run_job`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor.debug import CommDebugMode

from stagecut import InputError, Layout
from stagecut.instances.costs.layout import Recompute
from stagecut.runtime.execution.job.parallelize import ParallelizePlan
from stagecut.runtime.execution.job.run import RunningJob, loss_alone, run_job, train_job

WORDS, WIDTH, HEADS, TOKENS, BATCH = 32, 16, 4, 8, 8


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
            x = layer(x + waves(torch.arange(x.shape[1]))) if self.placed else layer(x)
        return self.head(self.norm(x))


def waves(positions: Tensor) -> Tensor:
    """Return what says where tokens are."""
    return torch.sin(positions[:, None] * torch.arange(1, WIDTH + 1) / 3)


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


def make_transformer(tied: bool = False, layers: int = 4) -> Transformer:
    torch.manual_seed(0)
    return Transformer(layers, tied)


def batches(steps: int = 2) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    words = [torch.randint(0, WORDS, (BATCH, TOKENS + 1), generator=draw) for _ in range(steps)]
    return [(x[:, :-1], x[:, 1:]) for x in words]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2, eps=1e-3)


def alone(tied: bool = False, placed: bool = False, experts: bool = False) -> dict[str, Any]:
    """Return losses, norms and the first step's gradients of one process without stagecut."""
    model = make_transformer(tied)
    model = mixed(model) if experts else model
    model.placed = placed
    optimizer = adam(model.parameters())
    losses, norms, gradients = [], [], {}
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        named = model.named_parameters(remove_duplicate=False)
        gradients = gradients or {n: p.grad.clone() for n, p in named if p.grad is not None}
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "norms": norms, "gradients": gradients}


def job_rank(_rank: int, jobs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Run jobs one after the other: layout fields, and options; return what `alone` does."""
    found = []
    for fields, options in jobs:
        given = {"clip": 0.05, "optimizer": adam, **options}
        tied, part = given.pop("tied", False), given.pop("part", slice(0, 2))
        model = make_transformer(tied)
        model = mixed(model) if given.pop("experts", False) else model
        plan = PLACED if given.pop("placed", False) else PLAN
        layout = Layout(**{"global_batch": BATCH, "sequence": TOKENS, "recipe": "fp32", **fields})
        gradients: dict[str, Tensor] = {}

        def keep(job: RunningJob, gradients: dict[str, Tensor] = gradients) -> None:
            if not gradients:
                TransformerBlock.passes = 0  # torch's pipelining finds out shapes in the first step
                for stage in job.stages.values():
                    for name, p in stage.named_parameters(remove_duplicate=False):
                        gradients[name] = p.grad.full_tensor().clone()

        job = RunningJob(
            model, plan, layout, device=torch.device("cpu"),
            schedule=given.pop("schedule", None),
        )  # fmt: skip
        run = train_job(job, batches()[part], on_gradients=keep, **given)
        found.append(
            {"losses": run.losses, "norms": run.norms, "gradients": gradients,
             "passes": TransformerBlock.passes}
        )  # fmt: skip
    return found


def run_rank(_rank: int, devices: int) -> Any:
    """Run a job as under torchrun; return what one process has of the first batch, and losses.

    Of a job that is refused, return why.
    """
    layout = Layout(data=devices, global_batch=BATCH, sequence=TOKENS, recipe="fp32", zero=3)
    seen = loss_alone(make_transformer(), PLACED, *batches()[0])
    try:
        run = run_job(make_transformer, PLACED, layout, batches(), optimizer=adam, device="cpu")
    except InputError as error:
        return str(error)
    return seen, run.losses


def collectives(_rank: int, fields: list[dict[str, Any]]) -> list[dict[str, int]]:
    """Return how many collectives DTensor has in a step of one microbatch, for each layout."""
    found = []
    for given in fields:
        batch = {"global_batch": BATCH, "microbatch": BATCH, "sequence": TOKENS, "recipe": "fp32"}
        job = RunningJob(
            make_transformer(), PLAN, Layout(**{**batch, **given}), device=torch.device("cpu")
        )
        job.step(*batches()[0])
        with CommDebugMode() as seen:
            job.step(*batches()[0])
        counts = {str(kind): count for kind, count in seen.get_comm_counts().items()}
        found.append({k.split(".")[1]: n for k, n in counts.items() if k.startswith("c10d_func")})
    return found
