"""A rank of a training job on one GPU: seconds of its passes and its memory beside the costs.

The process group is torch's fake one, with as many ranks as the layout has: collectives return at
once, and gathers copy. So only the rank's own work is measured, and the prediction is made without
links: each collective takes no time. The models are those of `transformer`, from shipped
descriptions, at their real widths and with a few of their blocks.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import DeviceType
from torch.distributed.tensor import DTensor
from torch.library import _scoped_library
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from stagecut.instances.costs.calibration import Calibration, calibration
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.collectives import LinkEfficiency
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.hardware import Accelerator
from stagecut.instances.costs.layers import LayerPrices
from stagecut.instances.costs.layout import Layout, Software
from stagecut.instances.costs.memory import rank_memory
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.costs.stages import optimizer_rates, stage_times
from stagecut.runtime.execution.job.running import RunningJob
from stagecut.runtime.execution.job.transformer import transformer

GIB = 2.0**30
WARM_UP, STEPS = 2, 5
#: Links that take no time.
FREE = LinkEfficiency(1e12, 1e12, 0.0, 0.0, 0.0, 0.0)
#: What the profiler's names of kernels have in them, by term; the first that fits.
TERMS = {
    "attention": ("flash", "fmha", "attention", "mha"),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitk"),
    "copies": ("memcpy", "memset", "chunk_cat", "split_with_sizes", "catarray"),
}


@dataclass(frozen=True)
class RankCase:
    """Some blocks of a model on one rank of a layout."""

    model: str
    layers: int
    layout: Layout

    @property
    def text(self) -> str:
        """Layout as the table shows it."""
        one = self.layout
        words = [f"{one.microbatch} x {one.sequence}"]
        words += [f"tensor {one.tensor}"] if one.tensor > 1 else []
        words += ["sequence"] if one.sequence_parallel else []
        words += [f"data {one.data}"] if one.data > 1 else []
        words += [f"expert {one.expert}"] if one.expert > 1 else []
        words += [f"zero {one.zero}"] if one.zero else []
        words += [f"recompute {' '.join(sorted(one.recompute))}"] if one.recompute else []
        words += ["compiled"] if one.compiled else []
        return ", ".join(words)

    def description(self) -> ModelDescription:
        """The last blocks of the model, and a vocabulary that tensor ranks can divide."""
        whole = shipped_model(self.model)
        t = self.layout.tensor
        rows = -(-whole.vocabulary // t) * t
        return replace(whole, blocks=whole.blocks[-self.layers :], vocabulary=rows, mtp=())


def case(model: str, layers: int, microbatch: int, sequence: int, **more: Any) -> RankCase:
    data = more.get("data", 1)
    recompute = frozenset(more.pop("recompute", ()))
    layout = Layout(
        microbatch=microbatch,
        sequence=sequence,
        global_batch=microbatch * data,
        recompute=recompute,
        recipe="fsdp-bf16",  # type: ignore[arg-type]  # its name will do
        software=Software.STAGECUT,
        **more,
    )
    return RankCase(model, layers, layout)


def cases() -> Iterator[RankCase]:
    """Yield the cases, the most telling first."""
    sharded: dict[str, Any] = {"data": 8, "zero": 3}
    yield case("llama3-8b", 4, 1, 8192, **sharded)
    yield case("llama3-8b", 4, 1, 8192)
    yield case("llama3-70b", 4, 1, 8192, tensor=8, sequence_parallel=True, data=4, zero=3)
    yield case("mixtral-8x7b", 2, 1, 4096, **sharded)
    yield case("llama3-8b", 4, 1, 8192, **sharded, recompute=("full",))
    yield case("llama3-8b", 4, 1, 8192, **sharded, recompute=("op",))
    yield case("qwen3-8b", 4, 2, 4096, **sharded)
    yield case("gpt3-175b", 2, 1, 2048, tensor=8, sequence_parallel=True)
    yield case("qwen3-30b-a3b", 2, 1, 4096, data=8, zero=3, expert=8)
    yield case("deepseek-v2-lite", 2, 1, 4096, **sharded)
    yield case("llama3-8b", 4, 1, 8192, data=8, zero=1)
    yield case("llama3-8b", 4, 1, 8192, data=8, zero=2)
    yield case("llama3-8b", 4, 1, 8192, tensor=2, sequence_parallel=True, data=4, zero=3)
    yield case("llama3-8b", 4, 1, 8192, tensor=4, sequence_parallel=True, data=2, zero=1)
    yield case("llama3-8b", 4, 1, 8192, tensor=4)
    yield case("llama3-70b", 2, 1, 8192, data=32, zero=3, recompute=("full",))
    yield case("llama3-8b", 4, 4, 2048, **sharded)
    yield case("llama3-8b", 2, 1, 32768, tensor=4, sequence_parallel=True, recompute=("full",))
    yield case("llama3-8b", 8, 1, 8192, **sharded)
    yield case("gpt3-6.7b", 4, 2, 2048, **sharded)
    yield case("llama3-8b", 4, 1, 8192, compiled=True)
    yield case("qwen3-8b", 4, 2, 4096, compiled=True)
    yield case("gpt3-6.7b", 4, 2, 2048, compiled=True)


def smaller(one: RankCase) -> RankCase:
    """Return a case of less work, for a machine without a GPU."""
    layout = replace(one.layout, sequence=64, microbatch=1, global_batch=one.layout.data)
    return RankCase(one.model, 1, layout)


#: Most of each size in descriptions of narrow layers.
NARROW = {
    "heads": 8, "kv_heads": 8, "head_dim": 16, "value_dim": 0, "kv_rank": 32, "rope_dim": 8,
    "experts": 8, "top_k": 2, "width": 64, "shared_width": 64,
}  # fmt: skip


def shrunk(model: ModelDescription) -> ModelDescription:
    """Return a description of narrow layers, for a machine without a GPU."""

    def narrow(part: Any) -> Any:
        if part is None:
            return None
        own = [name for name in NARROW if hasattr(part, name)]
        return replace(part, **{name: min(getattr(part, name), NARROW[name]) for name in own})

    blocks = tuple(
        replace(
            block,
            attention=narrow(block.attention),
            feed_forward=narrow(block.feed_forward),
            experts=narrow(block.experts),
        )
        for block in model.blocks
    )
    places = min(model.positions, 64)
    return replace(model, hidden=128, vocabulary=512, positions=places, blocks=blocks)


# What the costs say.


def predicted(
    one: RankCase, model: ModelDescription, chip: Accelerator, table: Calibration | None = None
) -> dict[str, float]:
    """Return seconds of passes, of their terms and of the optimizer, and GiB by category."""
    layout = one.layout
    cluster = training_cluster(f"{chip.name}:8x{-(-layout.devices // 8)}")
    table = table or calibration(chip.family, layout.software)
    prices = LayerPrices(model, cluster, replace(table, links=FREE))
    (stage,) = stage_times(layout, prices)
    memory = rank_memory(model, layout)
    dense, routed = optimizer_rates(layout, prices)[0]
    return {
        "forward_s": stage.forward,
        "backward_s": stage.backward,
        "optimizer_s": dense * stage.held.shared + routed * stage.held.routed,
        "products_s": stage.terms["products"],
        "attention_s": stage.terms["attention"],
        "pointwise_s": stage.terms["pointwise"],
        "recomputation_s": stage.terms["recomputation"],
        "host_s": stage.terms["host"],
        "state_gib": (memory.parameters + memory.optimizer) / GIB,
        "peak_gib": memory.allocated / GIB,
    }


def case_of(row: Mapping[str, str]) -> RankCase:
    """Return the case of a row."""
    key = row["model"], int(row["layers"]), row["layout"]
    return next(one for one in cases() if (one.model, one.layers, one.text) == key)


def predicted_again(row: Mapping[str, str], chip: Accelerator) -> dict[str, object]:
    """Return what the costs say of the case of a row."""
    one = case_of(row)
    said = predicted(one, one.description(), chip)
    return {f"predicted_{name}": value for name, value in said.items()}


# What a rank does.


def own_part(x: Tensor, _op: str, size: int, _group: str) -> Tensor:
    return x.chunk(size)[0].clone()


def own_rows(x: Tensor, _output: list[int], _input: list[int], _group: str) -> Tensor:
    return x.clone()


def own_counts(output: Tensor, given: Tensor, **_more: Any) -> None:
    output.copy_(given)


@contextmanager
def fake_group(ranks: int) -> Iterator[None]:
    """A fake process group whose collectives return the rank's own numbers.

    Some versions of torch leave results of exchanges and of sums that are scattered as the memory
    was: numbers without bounds, and none for experts to count.
    """
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    counts = dist.all_to_all_single
    try:
        with _scoped_library("_c10d_functional", "IMPL") as library:
            for device in ("CPU", "CUDA"):
                library.impl("reduce_scatter_tensor", own_part, device)
                library.impl("all_to_all_single", own_rows, device)
            dist.all_to_all_single = own_counts
            yield
    finally:
        dist.all_to_all_single = counts
        dist.destroy_process_group()


class TimedJob(RunningJob):
    """A job that notes when its forward pass with the loss is over."""

    ahead: Any = None

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = super()._loss(logits, targets)
        self.ahead = moment(self.device)
        return loss


def moment(device: torch.device) -> Any:
    """Return a mark of this place in the device's work."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(first: Any, last: Any) -> float:
    """Return the seconds between two marks, whose work is over."""
    if isinstance(first, float):
        return float(last - first)
    return float(first.elapsed_time(last)) * 1e-3


def held_now(device: torch.device) -> int:
    """Return the bytes that the allocator has given out."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


@torch.no_grad()
def fill(_name: str, parameter: Tensor) -> None:
    """Fill a parameter on its device: `transformer`'s own numbers are drawn on the host."""
    if parameter.ndim == 1:
        local(parameter).fill_(1.0)
    else:
        local(parameter).normal_(0.0, 0.02)


@contextmanager
def rank_of(
    one: RankCase, model: ModelDescription, device: torch.device
) -> Iterator[tuple[TimedJob, Tensor, Tensor, int]]:
    """Make a rank, its tokens and targets; yield them with the bytes held before."""
    layout, before = one.layout, held_now(device)
    try:
        with fake_group(layout.devices):
            torch.manual_seed(0)
            made, plan = transformer(model)
            job = TimedJob(made, replace(plan, initialize=fill), layout, device=device)
            for name, parameter in job.named_parameters():
                fill(name, parameter)  # what ranks send each other when they divide it is not there
            if layout.compiled:
                for name in sorted(job.module.block_names):
                    job.module.get_submodule(name).compile()
            shape = (layout.microbatch, layout.sequence)
            x, y = (torch.randint(model.vocabulary, shape, device=device) for _ in range(2))
            yield job, x, y, before
    finally:
        gc.collect()  # modules and their hooks hold each other
        if device.type == "cuda":
            torch.cuda.empty_cache()


def run(one: RankCase, model: ModelDescription, device: torch.device) -> dict[str, float]:
    """Return what a rank takes: medians of seconds and GiB."""
    cuda = device.type == "cuda"
    with rank_of(one, model, device) as (job, x, y, before):
        parameters = [group for stage in job.stages for group in job.parameter_groups(stage)]
        optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=cuda)
        found: dict[str, list[float]] = {}
        for step in range(WARM_UP + STEPS):
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            times = _step(job, optimizer, x, y)
            if cuda:
                times["peak_gib"] = (torch.cuda.max_memory_allocated() - before) / GIB
            times["state_gib"] -= before / GIB
            for name, value in times.items() if step >= WARM_UP else ():
                found.setdefault(name, []).append(value)
        return {name: statistics.median(values) for name, values in found.items()}


def by_term(
    one: RankCase, model: ModelDescription, device: torch.device
) -> tuple[dict[str, float], dict[str, float]]:
    """Return seconds of kernels by term with their number, and microseconds by their names.

    Behind a profile the host takes longer for every launch: what is timed runs before.
    """
    with rank_of(one, model, device) as (job, x, y, _):
        for _ in range(WARM_UP):
            with job.running():
                job.passes(x, y)
        kernels = _by_kernel(job, x, y)
    seconds = dict.fromkeys((*TERMS, "pointwise"), 0.0)
    by_name: Counter[str] = Counter()
    for name, duration in kernels:
        seconds[_term(name)] += 1e-6 * duration
        by_name[name[:160]] += duration
    found = {f"measured_{term}_s": value for term, value in seconds.items()}
    return found | {"measured_kernels": float(len(kernels))}, dict(by_name.most_common(40))


def _step(
    job: TimedJob, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> dict[str, float]:
    """Run a step, and return its seconds and bytes."""
    device = job.device
    optimizer.zero_grad()
    state = held_now(device)
    start, issuing = moment(device), time.perf_counter()
    with job.running():
        (loss,) = job.passes(x, y)
    issued = time.perf_counter() - issuing
    behind = moment(device)
    job.add_up_gradients()
    with torch.no_grad():  # what ranks would have sent is not in them: random ones, none infinite
        for _, parameter in job.named_parameters():
            if parameter.grad is not None:
                local(parameter.grad).normal_(0.0, 1e-3)
    begin = moment(device)
    optimizer.step()
    end = moment(device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    if not math.isfinite(float(loss)):
        raise ValueError(f"the loss is {float(loss)}: kernels are not timed on such numbers")
    return {
        "forward_s": between(start, job.ahead),
        "backward_s": between(job.ahead, behind),
        "optimizer_s": between(begin, end),
        "issued_s": issued,
        "state_gib": state / GIB,
    }


def _by_kernel(job: TimedJob, x: Tensor, y: Tensor) -> list[tuple[str, float]]:
    """Return the kernels of both passes, names and microseconds."""
    for _, parameter in job.named_parameters():
        parameter.grad = None
    with profile(activities=[ProfilerActivity.CUDA]) as profiler, job.running():
        job.passes(x, y)
        torch.cuda.synchronize()
    return [
        (event.name, float(event.time_range.elapsed_us()))
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
        and not event.name.startswith(("FSDP::", "Optimizer"))
    ]


def _term(kernel: str) -> str:
    """Return the term that a kernel of this name belongs to."""
    called = kernel.lower()
    found = (term for term, words in TERMS.items() if any(word in called for word in words))
    return next(found, "pointwise")


def sized(one: RankCase, small: bool) -> tuple[RankCase, ModelDescription]:
    """Return a case and its description, of less work and narrow layers if `small`."""
    one = smaller(one) if small else one
    return one, shrunk(one.description()) if small else one.description()


def compared(
    one: RankCase, device: torch.device, chip: Accelerator, small: bool
) -> Mapping[str, object]:
    """Return the row of a case, predicted beside measured."""
    one, model = sized(one, small)
    said = predicted(one, model, chip)
    seen = run(one, model, device)
    row: dict[str, object] = {"model": one.model, "layers": one.layers, "layout": one.text}
    for key, value in said.items():
        row[f"predicted_{key}"] = value
        row[f"measured_{key}"] = seen.pop(key, None)
    row |= {f"measured_{key}": value for key, value in seen.items()}
    return {**row, "measured_copies_s": None, "measured_kernels": None}  # `by_term` knows them
