"""Memory of a rank against torch itself: its memory tracker on a fake process group.

No device is needed: tensors have shapes but no data, the process group has eight ranks and sends
nothing, and torch's own FSDP2, tensor parallelism and checkpointing run as usual. For five models
in six layouts, the tracker's peak by category is set beside `rank_memory`, and the counts of
CommDebugMode beside `collectives`. Models are built from their descriptions with torch's modules;
their RMS norm is one fused operation, as it is on a device.

    python benchmarks/memory_against_torch.py [--json OUT]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from stagecut.instances.costs.description import (
    Attention,
    Block,
    Experts,
    FeedForward,
    ModelDescription,
    Norm,
)
from stagecut.instances.costs.layout import RECIPES, Layout, Recipe, Recompute, Software
from stagecut.instances.costs.memory import RankMemory, rank_memory
from stagecut.instances.costs.traffic import collectives

RANKS = 8
#: Everything in 16 bits, Adam's moments too.
ALL_BF16 = Recipe(
    "all-bf16", RECIPES["fsdp-bf16"].compute, 2.0, 2.0, 0.0, 4.0, gather_bytes=2, reduce_bytes=2
)


def models() -> dict[str, ModelDescription]:
    """Five small models of as many families."""

    def model(name: str, hidden: int, block: Block, **more: Any) -> ModelDescription:
        return ModelDescription(name, hidden, more.pop("vocabulary", 16000), (block,) * 4, **more)

    llama = Block(Attention(16, 4, 64), feed_forward=FeedForward(2816))
    return {
        "gpt": model(
            "gpt",
            768,
            Block(
                Attention(12, 12, 64, bias=True, output_bias=True),
                feed_forward=FeedForward(3072, gated=False, bias=True),
                norm=Norm.LAYER,
            ),
        ),
        "llama": model("llama", 1024, llama),
        "gemma": model(
            "gemma",
            1024,
            replace(llama, attention=Attention(8, 4, 128, qk_norm=True), norms=4),
            tied=True,
        ),
        "deepseek": model(
            "deepseek",
            1024,
            replace(llama, attention=Attention(8, 8, 64, 96, q_rank=256, kv_rank=128, rope_dim=32)),
            vocabulary=2000,
        ),
        "mixtral": model(
            "mixtral",
            1024,
            replace(llama, feed_forward=None, experts=Experts(8, 2, 1024)),
            vocabulary=2000,
        ),
    }


def layouts() -> dict[str, Layout]:
    """Six layouts of eight ranks."""
    plain = Layout(
        data=RANKS,
        global_batch=2 * RANKS,
        microbatch=2,
        sequence=1024,
        recipe=ALL_BF16,
        software=Software.TORCHTITAN,
    )
    return {
        "data": plain,
        "fsdp": replace(plain, zero=3, recipe=RECIPES["fsdp-bf16"]),
        "tensor": replace(plain, tensor=4, data=2, global_batch=4, sequence_parallel=True),
        "pipeline": replace(plain, pipeline=4, data=2, global_batch=16),
        "full": replace(plain, recompute=frozenset({Recompute.FULL})),
        "selective": replace(plain, recompute=frozenset({Recompute.MLP})),
    }


# The models in torch.


class FusedRms(torch.autograd.Function):
    """Root-mean-square norm that keeps its input and one number per token."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        context.save_for_backward(x, weight, scale)
        return (x * scale).to(x.dtype) * weight

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight, scale = context.saved_tensors
        along = tuple(range(gradient.dim() - 1))
        return gradient * weight, (gradient * (x * scale)).sum(along).to(weight.dtype)


class RmsNorm(nn.Module):
    """Root-mean-square norm with a weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return FusedRms.apply(x, self.weight)  # type: ignore[no-any-return]


def norm(kind: Norm, width: int) -> nn.Module:
    """A norm of either kind."""
    return nn.LayerNorm(width) if kind is Norm.LAYER else RmsNorm(width)


class SelfAttention(nn.Module):
    """Causal attention by torch's fused kernel: multi-head, grouped-query or latent."""

    def __init__(self, shape: Attention, hidden: int) -> None:
        super().__init__()
        self.shape = shape
        width, bias = shape.heads * shape.key_width, shape.bias
        if shape.latent:
            self.q_down = nn.Linear(hidden, shape.q_rank, bias=False)
            self.q_norm = RmsNorm(shape.q_rank)
            self.q_up = nn.Linear(shape.q_rank, width, bias=False)
            self.kv_down = nn.Linear(hidden, shape.kv_rank + shape.rope_dim, bias=False)
            self.kv_norm = RmsNorm(shape.kv_rank)
            up = shape.heads * (shape.head_dim + shape.value_width)
            self.kv_up = nn.Linear(shape.kv_rank, up, bias=False)
        else:
            self.q = nn.Linear(hidden, width, bias=bias)
            self.k = nn.Linear(hidden, shape.kv_heads * shape.key_width, bias=bias)
            self.v = nn.Linear(hidden, shape.kv_heads * shape.value_width, bias=bias)
            if shape.qk_norm:
                self.q_norm, self.k_norm = RmsNorm(shape.head_dim), RmsNorm(shape.head_dim)
        self.out = nn.Linear(shape.heads * shape.value_width, hidden, bias=shape.output_bias)

    def forward(self, x: Tensor) -> Tensor:
        shape, (batch, tokens) = self.shape, x.shape[:2]

        def heads(y: Tensor, width: int) -> Tensor:
            return y.view(batch, tokens, -1, width)

        if shape.latent:
            q = heads(self.q_up(self.q_norm(self.q_down(x))), shape.key_width)
            low, rope = self.kv_down(x).split([shape.kv_rank, shape.rope_dim], -1)
            both = heads(self.kv_up(self.kv_norm(low)), shape.head_dim + shape.value_width)
            k, v = both.split([shape.head_dim, shape.value_width], -1)
            k = torch.cat([k, rope.unsqueeze(2).expand(-1, -1, shape.heads, -1)], -1)
        else:
            q, k = heads(self.q(x), shape.key_width), heads(self.k(x), shape.key_width)
            v = heads(self.v(x), shape.value_width)
            if shape.qk_norm:
                q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        grouped = q.shape[1] != k.shape[1]
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1))


class Gelu(nn.Module):
    """Two matrices around a GELU."""

    def __init__(self, shape: FeedForward, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, shape.width, bias=shape.bias)
        self.down = nn.Linear(shape.width, hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class SwiGlu(nn.Module):
    """Three matrices: a gate, what it gates, and the way out."""

    def __init__(self, shape: FeedForward, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, shape.width, bias=False)
        self.up = nn.Linear(hidden, shape.width, bias=False)
        self.down = nn.Linear(shape.width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Experts with balanced loads: every expert takes as many tokens, in a batched product."""

    def __init__(self, shape: Experts, hidden: int) -> None:
        super().__init__()
        self.shape = shape
        self.router = nn.Linear(hidden, shape.experts, bias=False)
        self.gate = nn.Parameter(torch.empty(shape.experts, hidden, shape.width))
        self.up = nn.Parameter(torch.empty(shape.experts, hidden, shape.width))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.width, hidden))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        scores = functional.softmax(self.router(flat).float(), -1)
        weights, _ = scores.topk(self.shape.top_k, -1)
        # Balanced: which tokens an expert takes changes no shape.
        places = torch.arange(flat.shape[0] * self.shape.top_k) // self.shape.top_k
        rows = flat[places].view(self.shape.experts, -1, flat.shape[1])
        between = functional.silu(rows @ self.gate) * (rows @ self.up)
        out = (between @ self.down).view(-1, flat.shape[1]) * weights.flatten().to(x.dtype)[:, None]
        return out.view(-1, self.shape.top_k, flat.shape[1]).sum(1).view_as(x)


class Layer(nn.Module):
    """A block: norms and residuals around attention and feed-forward."""

    def __init__(self, block: Block, hidden: int, recompute: frozenset[Recompute]) -> None:
        super().__init__()
        self.recompute = bool(recompute & {Recompute.MLP, Recompute.MOE})
        self.norm1, self.norm2 = norm(block.norm, hidden), norm(block.norm, hidden)
        assert block.attention is not None
        self.attention = SelfAttention(block.attention, hidden)
        if block.experts is not None:
            self.feed_forward: nn.Module = Mixture(block.experts, hidden)
        else:
            assert block.feed_forward is not None
            kind = SwiGlu if block.feed_forward.gated else Gelu
            self.feed_forward = kind(block.feed_forward, hidden)
        if block.norms > 2:
            self.norm3, self.norm4 = norm(block.norm, hidden), norm(block.norm, hidden)
        self.behind = block.norms > 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(self.norm1(x))
        x = x + (self.norm3(y) if self.behind else y)
        z = self.norm2(x)
        if self.recompute:
            y = checkpoint(self.feed_forward, z, use_reentrant=False)
        else:
            y = self.feed_forward(z)
        return x + (self.norm4(y) if self.behind else y)


class Transformer(nn.Module):
    """A stage of a model: all of it, or blocks alone."""

    def __init__(
        self, model: ModelDescription, recompute: frozenset[Recompute], ends: bool
    ) -> None:
        super().__init__()
        self.full = Recompute.FULL in recompute
        self.layers = nn.ModuleList(Layer(block, model.hidden, recompute) for block in model.blocks)
        self.ends = ends
        if ends:
            self.embedding = nn.Embedding(model.vocabulary, model.hidden)
            self.norm = norm(model.blocks[-1].norm, model.hidden)
            self.head = nn.Linear(model.hidden, model.vocabulary, bias=False)
            if model.tied:
                self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        if self.ends:
            x = self.embedding(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.full else layer(x)
        return self.head(self.norm(x)) if self.ends else x


class Adam(torch.optim.Optimizer):
    """Adam, parameter by parameter, without reading numbers off tensors."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                if not state:
                    state["first"], state["second"] = torch.zeros_like(one), torch.zeros_like(one)
                state["first"].lerp_(one.grad, 0.1)
                state["second"].mul_(0.99).addcmul_(one.grad, one.grad, value=0.01)
                one.addcdiv_(state["first"], state["second"].sqrt().add_(1e-8), value=-1e-3)


def shard(module: Transformer, mesh: DeviceMesh) -> None:
    """FSDP2 by block: 32-bit shards, gathered in 16 bits, reduced in 32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in module.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)


def divide(module: Transformer, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallelism by torch's own styles; experts are not divided."""
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    into, out = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    plan: dict[str, Any] = dict.fromkeys(("norm1", "norm2"), SequenceParallel())
    plan |= dict.fromkeys(("norm3", "norm4"), SequenceParallel(use_local_output=True))
    plan |= dict.fromkeys(("attention", "feed_forward"), gathered)
    plan |= {f"attention.{name}": into for name in ("q", "k", "v")}
    plan |= {f"feed_forward.{name}": into for name in ("gate", "up")}
    plan |= {"attention.out": out, "feed_forward.down": out}
    for layer in module.layers:
        found = {name for name, _ in layer.named_modules()}
        parallelize_module(layer, mesh, {k: v for k, v in plan.items() if k in found})


# What torch measures.


#: Names of torch's collectives, of process groups and of their functional form.
KINDS = {
    "_allgather_base_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "allreduce_": "all-reduce",
    "all_reduce": "all-reduce",
}


class Bytes(TorchDispatchMode):
    """Bytes of collectives by kind: of the gathered tensor, or of a rank's input to a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = KINDS.get(func._schema.name.split("::")[-1])
        if kind is not None:
            tensors = [one for one in tree_leaves((args, result)) if isinstance(one, Tensor)]
            size = max(one.numel() * one.element_size() for one in tensors)
            self.seen[kind] = self.seen.get(kind, 0) + size
        return result


@dataclass(frozen=True)
class Tracked:
    """What torch saw of a rank: bytes at the peak by category; collectives and their bytes."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    counts: Mapping[str, int]
    sizes: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def track(model: ModelDescription, layout: Layout) -> Tracked:
    """Run two iterations of a rank and return the peak of torch's memory tracker.

    With a vocabulary of 0 blocks run alone.
    """
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        whole = init_device_mesh("cpu", (RANKS,))
        grid = init_device_mesh(
            "cpu", (RANKS // layout.tensor, layout.tensor), mesh_dim_names=("d", "t")
        )
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32 if layout.zero == 3 else torch.bfloat16)
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                return _track(model, layout, whole, grid)
        finally:
            torch.set_default_dtype(before)
    finally:
        dist.destroy_process_group()


def _track(model: ModelDescription, layout: Layout, whole: DeviceMesh, grid: DeviceMesh) -> Tracked:
    held = model
    if layout.pipeline > 1:  # the second rank's blocks
        count = layout.layers_of_stages(model.layers)[1]
        held = replace(model, blocks=model.blocks[:count])
    module = Transformer(held, layout.recompute, ends=bool(model.vocabulary) and held is model)
    if layout.zero == 3:
        shard(module, whole)
    if layout.tensor > 1:
        divide(module, grid["t"])
    optimizer = Adam(module.parameters())
    step = _step if module.ends else _blocks_step if held is model else _pipeline_step
    # The first iteration makes the optimizer's state, and what torch computes once.
    step(module, layout, model)
    optimizer.step()
    optimizer.zero_grad()
    tracker, counted, sized = MemTracker(), CommDebugMode(), Bytes()
    tracker.track_external(module, optimizer)
    with tracker:
        with counted, sized:
            step(module, layout, model)
        optimizer.step()
        optimizer.zero_grad()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    activations = peak[_MemRefType.ACT] + peak[_MemRefType.TEMP] + peak[_MemRefType.OTH]
    counts: dict[str, int] = {}
    for op, count in counted.get_comm_counts().items():
        kind = KINDS[str(op).split(".")[-1]]
        counts[kind] = counts.get(kind, 0) + count
    return Tracked(
        peak[_MemRefType.PARAM],
        peak[_MemRefType.GRAD],
        peak[_MemRefType.OPT],
        activations + peak[_MemRefType.BUFFER],
        counts,
        sized.seen,
    )


def _step(module: Transformer, layout: Layout, model: ModelDescription) -> None:
    """One microbatch forward and backward."""
    ids = torch.randint(0, model.vocabulary, (layout.microbatch, layout.sequence))
    logits = module(ids)
    loss = functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
    del logits
    loss.backward()


def _pipeline_step(module: Transformer, layout: Layout, model: ModelDescription) -> None:
    """1F1B of the second rank: its warm-up, then a backward pass after each forward pass.

    Each microbatch has a module of its own around the same parameters, since the tracker follows
    a module through one forward and one backward pass.
    """
    shape = (layout.microbatch, layout.sequence, model.hidden)
    flying: list[tuple[nn.Module, Tensor, Tensor]] = []
    ahead = layout.pipeline - 2
    for n in range(layout.microbatches + ahead):
        if n < layout.microbatches:
            own, x = deepcopy(module, dict(_shared(module))), torch.empty(shape, requires_grad=True)
            flying.append((own, x, own(x)))
            del own, x
        if n >= ahead:
            own, x, output = flying.pop(0)
            output.backward(torch.empty(shape))
            x.grad = None
            del own, x, output


def _blocks_step(module: Transformer, layout: Layout, model: ModelDescription) -> None:
    """One microbatch through blocks alone, its sequence divided over tensor ranks."""
    shape = (layout.microbatch, layout.sequence // layout.tensor, model.hidden)
    module(torch.empty(shape, requires_grad=True)).backward(torch.empty(shape))


def _shared(module: nn.Module) -> Iterator[tuple[int, nn.Parameter]]:
    for one in module.parameters():
        yield id(one), one


def predicted(model: ModelDescription, layout: Layout) -> RankMemory:
    """What the costs say of the same rank; the pipeline's messages are not sent here."""
    if layout.pipeline > 1:
        return replace(rank_memory(model, layout, 1), communication=0.0)
    return rank_memory(model, layout)


def traffic(model: ModelDescription, layout: Layout) -> dict[str, tuple[int, float]]:
    """What the costs say of collectives on the same rank: count and bytes by kind."""
    rank = 1 if layout.pipeline > 1 else 0
    axes = ("data",) if layout.zero == 3 else ("tensor",)
    found = [one for one in collectives(model, layout, rank) if one.axis in axes]
    return {one.kind: (one.count, one.size) for one in found}


def compared(found: Tracked, memory: RankMemory) -> dict[str, tuple[float, float]]:
    """Bytes by category, torch's first; gathered weights are parameters to torch."""
    moving = memory.activations + memory.logits + memory.workspace + memory.communication
    return {
        "parameters": (found.parameters, memory.parameters + memory.gathered),
        "gradients": (found.gradients, memory.gradients),
        "optimizer": (found.optimizer, memory.optimizer),
        "activations": (found.activations, moving),
        "total": (found.total, memory.allocated),
    }


def cases() -> Iterator[tuple[str, str, ModelDescription, Layout]]:
    """All models in all layouts, but a mixture of experts or latent attention over tensor ranks."""
    for name, whole in models().items():
        for kind, usual in layouts().items():
            model, layout = whole, usual
            if kind == "tensor" and name in ("mixtral", "deepseek"):
                continue
            if kind == "selective" and name == "mixtral":
                layout = replace(layout, recompute=frozenset({Recompute.MOE}))
            if kind == "tensor":  # torch's divided loss is another program than the costs know
                model = replace(model, vocabulary=0, head=False, final_norm=False)
            yield name, kind, model, layout


def main(argv: list[str] | None = None) -> None:
    """Print the table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the table")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args(argv)
    table = []
    print(
        f"{'model':10}{'layout':10}"
        + "".join(
            f"{k:>26}" for k in ("parameters", "gradients", "optimizer", "activations", "total")
        )
    )
    for name, kind, model, layout in cases():
        if options.only not in f"{name} {kind}":
            continue
        found = track(model, layout)
        rows, said = compared(found, predicted(model, layout)), traffic(model, layout)
        seen = " ".join(
            f"{kind} {n} {found.sizes.get(kind, 0) / 2**20:.1f} ({said[kind][0]} "
            f"{said[kind][1] / 2**20:.1f})"
            for kind, n in sorted(found.counts.items())
        )
        table.append(
            {
                "model": name,
                "layout": kind,
                "bytes": rows,
                "collectives": {
                    k: (n, found.sizes.get(k, 0), *said.get(k, (0, 0.0)))
                    for k, n in found.counts.items()
                },
            }
        )
        cells = "".join(
            f"{a / 2**20:9.1f} {b / 2**20:8.1f} {(b / a - 1 if a else 0.0):+7.1%}"
            for a, b in rows.values()
        )
        print(f"{name:10}{kind:10}{cells}  {seen}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
