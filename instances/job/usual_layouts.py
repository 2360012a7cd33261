"""Usual layouts for a training job: baselines by the rules of frameworks and their guides.

Each rule generates layouts in its order of preference and chooses the first one that the model, the
cluster and the devices' memory allow. Rules do not estimate times.

``recipes.csv`` has the fastest published run of each model, device, number of devices and precision
(NVIDIA-NeMo/Megatron-Bridge, ``docs/performance-summary.md`` and its archive, layouts from
``src/megatron/bridge/perf_recipes``). A column is a field of `Layout`; empty: its default.
``benchmarks/recipes.py`` writes it from files of published runs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ..common.errors import InputError
from ..common.units import divisors, show_bytes
from ..costs.clusters import training_cluster
from ..costs.description import ModelDescription
from ..costs.hardware import NumberFormat, TrainingCluster
from ..costs.layout import FULL, RECIPES, Layout, Overlap, Recompute, check_layout
from ..costs.memory import fullest_rank
from ..costs.models import shipped_model
from ..costs.stages import device_memory
from .problem import on_one_device

#: Text of an empty collection: an empty column would stand for the default.
NONE = "none"


@dataclass(frozen=True)
class PublishedRecipe:
    """A published run of a shipped model."""

    # name, mtp: name of the model, and number of its blocks for multi-token prediction
    name: str
    mtp: int
    devices: str  # the cluster in one line, as for `training_cluster`
    layout: Layout  # layout of the run
    seconds: float  # measured seconds of one iteration
    source: str  # page or recipe that published it

    @property
    def model(self) -> ModelDescription:
        """Description of the trained model."""
        named = shipped_model(self.name)
        return replace(named, mtp=(named.mtp or (named.blocks[-1],))[:1] * self.mtp)

    @property
    def cluster(self) -> TrainingCluster:
        """Cluster of the run."""
        return training_cluster(self.devices)


@cache
def published_recipes() -> tuple[PublishedRecipe, ...]:
    """Return the shipped recipes.

    Examples
    --------
    >>> from stagecut.instances.job.usual_layouts import published_recipes
    >>> next(r.layout.pipeline for r in published_recipes() if r.devices == "h100:8x128")
    8
    """
    text = (files(__package__) / "recipes.csv").read_text(encoding="utf-8")
    return tuple(
        PublishedRecipe(
            row.pop("model"),
            int(row.pop("mtp")),
            row.pop("cluster"),
            source=row.pop("source"),
            seconds=float(row.pop("seconds")),
            layout=layout_of(row),
        )
        for row in csv.DictReader(text.splitlines())
    )


def layout_of(row: Mapping[str, str]) -> Layout:
    """Return the layout in the columns of a row."""
    default = Layout()
    return Layout(**{key: _value(key, text, default) for key, text in row.items() if text})


def _value(key: str, text: str, default: Layout) -> Any:
    words = [] if text == NONE else text.split()
    if key == "recipe":
        numbers: dict[str, Any] = {}
        for word in words[1:]:
            name, _, number = word.partition("=")
            numbers[name] = float(number)
        return replace(RECIPES[words[0]], **numbers)
    if key == "overlap":
        return Overlap(**{one.name: one.name in words for one in fields(Overlap)})
    if key == "stage_layers":
        runs = [tuple(map(int, word.split("x"))) for word in words]
        return tuple(run[0] for run in runs for _ in range(run[1] if len(run) > 1 else 1))
    if key == "recompute":
        return frozenset(words)
    usual = getattr(default, key)
    if isinstance(usual, bool):
        return text == "1"
    return int(text) if usual is None else type(usual)(text)


_NOTHING: frozenset[Recompute] = frozenset()

#: Largest tensor degree of the rules: usual nodes have as many devices.
WIDEST = 8

#: Megatron-Bridge's starting points for dense models: number of parameters below which a row
#: applies, tensor degrees, pipeline degrees and context degree
#: (NVIDIA-NeMo/Megatron-Bridge@067f987, skills/nemo-mbridge-perf-parallelism-strategies).
BY_PARAMETERS: tuple[tuple[float, tuple[int, ...], tuple[int, ...], int], ...] = (
    (1e9, (1,), (1,), 1),
    (10e9, (2, 4), (1,), 1),
    (70e9, (4, 8), (2, 4), 1),
    (175e9, (8,), (4, 8), 1),
    (math.inf, (8,), (8, 16), 2),
)
#: The same guide's degrees for mixtures of experts: tensor, pipeline, expert, context.
BY_NAME = {
    "moonlight-16b-a3b": (2, 1, 8, 1),
    "deepseek-v2": (1, 4, 32, 1),
    "qwen3-30b-a3b": (4, 2, 4, 1),
    "qwen3-235b-a22b": (4, 16, 8, 2),
    "deepseek-v3": (2, 16, 64, 1),
    "kimi-k2": (2, 16, 32, 1),
}
#: Degrees for other mixtures, in the same order: tensor 1 or 2, pipeline 1 to 4, expert 8 to 32
#: (skills/adding-model-support/recipe-patterns.md).
EXPERTS = tuple((t, p, e, 1) for e in (8, 16, 32) for p in (1, 2, 4) for t in (1, 2))

#: Number of parameters from which torchtitan's recipes have tensor 8 and full recomputation: those
#: of Llama 3 70B and 405B have both, that of 8B has neither (pytorch/torchtitan@b5bcd76,
#: torchtitan/models/llama3/config_registry.py).
TITAN_TENSOR_FROM = 70e9


@dataclass(frozen=True)
class UsualLayout:
    """Layout that a rule chooses, or the reason why it chooses none."""

    name: str  # name of the rule
    layout: Layout | None  # chosen layout; None if no layout of the rule runs
    # one line on why the rule's first layout does not run; empty if it does. Without a layout: the
    # least bytes that any of them needs, or why the first is invalid
    reason: str


def usual_layouts(
    model: ModelDescription,
    cluster: TrainingCluster,
    base: Layout,
    memory_bytes: float | None = None,
) -> tuple[UsualLayout, ...]:
    """Return the layout that each rule chooses for a model, a cluster and a batch.

    `base` has the common fields: global batch and sequence, recipe, software, overlap and graphs;
    its degrees are ignored. `memory_bytes` is the usable memory of each device, by default all.

    Examples
    --------
    >>> import stagecut
    >>> model = stagecut.model_description("llama3-8b")
    >>> cluster = stagecut.training_cluster("h100:8")
    >>> base = stagecut.Layout(global_batch=64, sequence=8192)
    >>> for one in usual_layouts(model, cluster, base)[:2]:
    ...     print(one.name, one.layout.zero, one.layout.tensor, one.layout.pipeline)
    ZeRO-3 over all devices 3 1 1
    tensor parallelism in the node, pipeline across 1 8 1
    """
    common = replace(on_one_device(base), shard_group=0, mtp_stage=-1)
    within = divisors(min(WIDEST, cluster.per_node))  # tensor degrees in a node
    rules = [
        ("ZeRO-3 over all devices", _sharded(common, cluster, within)),
        (
            "tensor parallelism in the node, pipeline across",
            _pipelines(common, model, cluster, within[::-1], 1),
        ),
        ("Megatron-Bridge's guide", _by_size(common, model, cluster)),
        ("ZeRO-1 in a pipeline (DeepSpeed)", _pipelines(common, model, cluster, [1], 2)),
        ("torchtitan's recipes", _titan(common, model, cluster)),
    ]
    recipe = nearest_recipe(model, cluster, base.recipe.compute)
    if recipe is not None:
        rules.append((f"NVIDIA's recipe for {recipe.devices}", _published(common, recipe, cluster)))
    return tuple(_first(name, model, cluster, layouts, memory_bytes) for name, layouts in rules)


def _first(
    name: str,
    model: ModelDescription,
    cluster: TrainingCluster,
    layouts: Iterable[Layout],
    memory_bytes: float | None,
) -> UsualLayout:
    """Return the first layout that runs, and why an earlier one does not; or why none runs."""
    reason, short, most = "", math.inf, ""
    for layout in layouts:
        try:
            check_layout(model, layout, cluster)
        except InputError as error:
            reason = reason or str(error)
            continue
        memory, free = fullest_rank(model, layout, device_memory(layout, cluster, memory_bytes))
        if free >= 0:
            return UsualLayout(name, layout, reason)
        both = f"{show_bytes(memory.needed)} of {show_bytes(memory.needed + free)}"
        if -free < short:
            short, most = -free, both
        reason = reason or f"memory: {both}"
    if most:
        reason = f"memory: at least {most}"
    return UsualLayout(name, None, reason or "a pipeline takes two devices and two layers")


def _sharded(common: Layout, cluster: TrainingCluster, tensors: Sequence[int]) -> Iterator[Layout]:
    """Yield layouts of FSDP or DeepSpeed's ZeRO-3: sharded weights, microbatches as large as fit.

    If the batch has too few sequences for so many replicas, or memory is short, the smallest
    sufficient tensor degree follows.
    """
    for tensor in tensors:
        whole = replace(_divided(common, cluster, tensor, 1), zero=3)
        for recompute in (_NOTHING, FULL):
            for size in _microbatches(whole):
                yield replace(whole, microbatch=size, recompute=recompute)


def _pipelines(
    common: Layout,
    model: ModelDescription,
    cluster: TrainingCluster,
    tensors: Sequence[int],
    least: int,
) -> Iterator[Layout]:
    """Yield pipelines of `least` ranks or more, few first, of each of some tensor degrees."""
    for tensor in tensors:
        for recompute in (_NOTHING, FULL):
            for pipeline in divisors(cluster.devices // tensor):
                if least <= pipeline <= model.layers:
                    layout = _divided(common, cluster, tensor, pipeline)
                    yield replace(_with_experts(layout, model, cluster), recompute=recompute)


def _by_size(common: Layout, model: ModelDescription, cluster: TrainingCluster) -> Iterator[Layout]:
    """Yield Megatron-Bridge's starting points, with a context degree by sequence length."""
    long = 1 if common.sequence <= 8192 else 2 if common.sequence <= 32768 else 4
    sparse = any(block.experts is not None for block in model.layer_types)
    if sparse:
        named = BY_NAME.get(model.name)
        points = (named,) if named else EXPERTS
    else:
        _, tensors, pipelines, context = next(
            row for row in BY_PARAMETERS if model.parameters < row[0]
        )
        points = tuple((t, p, 1, context) for t in tensors for p in pipelines)
    for recompute in (_NOTHING, FULL):
        for tensor, pipeline, expert, context in points:
            layout = _divided(common, cluster, tensor, pipeline, max(context, long))
            for experts in _expert_degrees(layout, expert):
                yield replace(layout, expert=experts, recompute=recompute)


def _titan(common: Layout, model: ModelDescription, cluster: TrainingCluster) -> Iterator[Layout]:
    """Yield FSDP layouts: with tensor parallelism for large models, else recomputing operators."""
    large = model.parameters >= TITAN_TENSOR_FROM
    layout = replace(_divided(common, cluster, WIDEST if large else 1, 1), zero=3)
    for recompute in (FULL,) if large else (frozenset({Recompute.OPERATORS}), FULL):
        for size in _microbatches(layout):
            yield replace(layout, microbatch=size, recompute=recompute)


def nearest_recipe(
    model: ModelDescription, cluster: TrainingCluster, precision: NumberFormat
) -> PublishedRecipe | None:
    """Return NVIDIA's recipe for a model and device, nearest in number of devices and precision."""
    named = cluster.accelerator.name
    own = [
        recipe
        for recipe in published_recipes()
        if recipe.name == model.name and recipe.cluster.accelerator.name == named
    ]
    return min(
        own,
        key=lambda one: (
            abs(math.log(one.layout.devices / cluster.devices)),
            one.layout.recipe.compute is not precision,
        ),
        default=None,
    )


def _published(
    common: Layout, recipe: PublishedRecipe, cluster: TrainingCluster
) -> Iterator[Layout]:
    """Yield a published layout with as many replicas as the cluster has devices for."""
    own = recipe.layout
    replica = own.tensor * own.context * own.pipeline
    layout = replace(
        common, tensor=own.tensor, sequence_parallel=own.sequence_parallel, context=own.context,
        context_kind=own.context_kind, pipeline=own.pipeline, chunks=own.chunks,
        data=max(1, cluster.devices // replica), expert=own.expert,
        expert_tensor=own.expert_tensor, dispatcher=own.dispatcher, zero=own.zero,
        microbatch=own.microbatch, schedule=own.schedule, recompute=own.recompute,
        recompute_layers=own.recompute_layers, stage_layers=own.stage_layers,
        mtp_stage=own.mtp_stage,
    )  # fmt: skip
    for expert in _expert_degrees(layout, own.expert):
        for size in dict.fromkeys((own.microbatch, 1)):
            yield replace(layout, expert=expert, microbatch=size)
            yield replace(layout, expert=expert, microbatch=size, recompute=FULL)


def _divided(
    common: Layout, cluster: TrainingCluster, tensor: int, pipeline: int, context: int = 1
) -> Layout:
    """Return a layout with the given degrees, whose replicas divide the optimizer."""
    return replace(
        common,
        tensor=tensor,
        sequence_parallel=tensor > 1,
        context=context,
        pipeline=pipeline,
        data=max(1, cluster.devices // (tensor * context * pipeline)),
        zero=1,
    )


def _with_experts(layout: Layout, model: ModelDescription, cluster: TrainingCluster) -> Layout:
    """Return a layout whose routed experts are divided over the devices of a node."""
    counts = [block.experts.experts for block in model.layer_types if block.experts is not None]
    ranks = math.gcd(layout.tensor * layout.context * layout.data, *counts) if counts else 1
    return replace(layout, expert=math.gcd(ranks, cluster.per_node))


def _expert_degrees(layout: Layout, wanted: int) -> Iterable[int]:
    """Return an expert degree, and its largest divisor that divides a pipeline rank's devices."""
    ranks = layout.tensor * layout.context * layout.data
    return dict.fromkeys((wanted, math.gcd(wanted, ranks)))


def _microbatches(layout: Layout) -> Sequence[int]:
    """Return the possible sizes of a microbatch in sequences, the largest first."""
    local = layout.global_batch // layout.data
    return [size for size in (8, 4, 2, 1) if size == 1 or (local >= size and local % size == 0)]
