"""Rows of published training runs as inputs of the costs: description, layout and cluster.

A file has a row per run, as `published_runs.py` says. Fields may be empty, and spellings differ
from source to source. If a row leaves out something that the costs need, the rules below assume it,
and each assumption is listed with the case. If no rule holds, the row is refused, with the reason.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stagecut.instances import InputError
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.description import (
    Attention,
    Block,
    Experts,
    FeedForward,
    ModelDescription,
    Norm,
)
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layout import (
    RECIPES,
    ContextKind,
    Dispatcher,
    Graphs,
    JobSchedule,
    Layout,
    Overlap,
    Recipe,
    Recompute,
    Software,
    check_precision,
    check_stages,
)
from stagecut.instances.costs.models import shipped_model

Row = Mapping[str, str]

#: Largest count of anything, and of layers and stages.
MOST = (10_000_000, 10_000)

#: Rows of GPTs whose source leaves out the vocabulary.
GPT_VOCABULARY = 51_200

#: Gigabits per second of a node's network where a source's rows do not say it, with the reference.
NETWORKS = {
    r"bigscience": 400.0,  # Jean Zay: 4 Omni-Path links of 100 Gb/s for 8 GPUs (arXiv:2211.05100)
    r"p3\.16xlarge": 25.0,  # AWS, EC2 P3 instances
    r"p3dn\.24xlarge": 100.0,
    r"p4de?\.24xlarge": 400.0,
    r"p5e?n?\.48xlarge": 3200.0,
}

#: What a source's peak of memory is, as its logs print it: bytes in use, those that the allocator
#: has, or all of the device's; and bytes of its gigabyte. Others: bytes in use, in 2^30.
PEAKS = (
    (r"torchtitan", "reserved", 2**30),  # logs max_reserved
    (r"bigscience", "held", 2**30),  # nvidia-smi
    (r"megatron-bridge", "allocated", 10**9),  # training/utils/train_utils.py: divides by 1.0e9
)

#: Words for attention in one kernel, and for scores that lie in memory.
FUSED = r"(?<!no )(?<!without )(flash|xformers|sdpa|memory[- ]efficient|cudnn)"
UNFUSED = r"unfused|no flash|without flash|torch|native|naive|eager|materiali|math|megatron|plain"

#: What tells a software family in the name of a source.
SOFTWARE = (
    (r"deepspeed|bigscience", Software.MEGATRON_DEEPSPEED),
    (r"torchtitan", Software.TORCHTITAN),
    (r"llm-foundry|mosaic|fsdp", Software.FSDP),
    (r"megatron(?! formula)|nemo|korthikanti|narayanan|zero.?bubble|qi et al",
     Software.MEGATRON),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A published run that the costs can price.

    Parameters
    ----------
    row
        As in the file.
    description, layout, cluster
        What it ran, how, and on what.
    seconds
        Measured per iteration; None where it ran out of memory or no time is given.
    peak_bytes
        Measured peak of the fullest device; None where none is given.
    peak_kind
        What it counts: a property of `RankMemory`.
    oom
        Whether it ran out of memory.
    assumed
        What the source leaves out, and what was taken.
    """

    row: Row
    description: ModelDescription
    layout: Layout
    cluster: TrainingCluster
    seconds: float | None
    peak_bytes: float | None
    peak_kind: str
    oom: bool
    assumed: tuple[str, ...]

    @property
    def source(self) -> str:
        """The source: what stands before the first colon of the sweep."""
        return source_of(self.row)

    @property
    def group(self) -> tuple[object, ...]:
        """Runs of one group differ in layout alone.

        Software, model, devices, tokens per batch and precision are the same.
        """
        layout = self.layout
        return (
            self.source, layout.software, replace(self.description, name="", source=""),
            self.row["gpu"], layout.devices, layout.global_batch * layout.sequence,
            layout.recipe.compute,
        )  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """A published run that the costs cannot price, and why."""

    row: Row
    reason: str

    @property
    def source(self) -> str:
        """The source: what stands before the first colon of the sweep."""
        return source_of(self.row)


def source_of(row: Row) -> str:
    """Return what stands before the first colon of a row's sweep."""
    return row.get("sweep", "").partition(":")[0] or "unnamed"


def read_rows(paths: Iterable[Path], added: Iterable[Path] = ()) -> list[Row]:
    """Return the rows of files, with the columns that further files add by ``id`` and ``sweep``.

    Parameters
    ----------
    paths
        CSV files of runs.
    added
        CSV files with ``id``, ``sweep`` and any columns; they fill what is empty, and add what is
        new. Sources number their runs alike, so that an ``id`` alone names none.
    """
    rows = [dict(row) for path in paths for row in _records(path)]
    named: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        named.setdefault((row.get("id", ""), row.get("sweep", "")), []).append(row)
    for path in added:
        for extra in _records(path):
            for row in named.get((extra.get("id", ""), extra.get("sweep", "")), ()):
                for key, value in extra.items():
                    if value and not row.get(key):
                        row[key] = value
    return list(rows)


def _records(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {key: (value or "").strip() for key, value in row.items() if key}
            for row in csv.DictReader(file)
        ]


def case_of(row: Row) -> Case | Refusal:
    """Return a row as a case, or why it is none."""
    assumed: list[str] = []
    if row.get("unstated"):
        return Refusal(row, f"{row['unstated']}: not stated by the source")
    try:
        description = _description(row, assumed)
        software = _software(row)
        layout = _layout(row, description, software, assumed)
        cluster = _cluster(row, assumed)
        check_stages(description, layout)
        check_precision(layout, cluster)
        oom = row.get("status", "ok").lower() in ("oom", "out of memory")
        seconds = None if oom else _seconds(row, description, layout, assumed)
        peak = _number(row, "peak_mem_gb") or None
    except InputError as error:
        return Refusal(row, str(error))
    if cluster.devices < layout.devices:
        return Refusal(
            row, f"layout: {layout.devices} devices of {cluster.devices}; tp, pp, cp, dp contradict"
        )
    text = row.get("source", "").lower()
    kind, gigabyte = next(
        (found for pattern, *found in PEAKS if re.search(pattern, text)), ("allocated", 2**30)
    )
    if seconds is None and peak is None and not oom:
        return Refusal(row, "measured: neither a time nor a peak of memory that can be converted")
    return Case(
        row,
        description,
        layout,
        cluster,
        seconds,
        None if peak is None else peak * gigabyte,
        kind,
        oom,
        tuple(assumed),
    )


def _number(row: Row, key: str) -> float | None:
    text = row.get(key, "").replace(",", "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{key}: {text!r} is no number") from None
    if not 0 <= value < math.inf:
        raise InputError(f"{key}: {text!r} is no number of at least 0")
    return value


def _count(row: Row, key: str, default: int | None = None) -> int:
    """Return a whole number of a row; `default` where it is empty."""
    value = _number(row, key)
    if value is None:
        if default is None:
            raise InputError(f"{key}: not stated")
        return default
    if not 0 <= value <= MOST[key in ("layers", "pp", "vpp")] or value != int(value):
        raise InputError(f"{key}: {value:g} is no count")
    return int(value)


# The model.


def _description(row: Row, assumed: list[str]) -> ModelDescription:
    """Return the shipped description that the row names, if their shapes agree, else its own."""
    named = _named(row)
    if named is not None:
        mtp = 0 if "w/o mtp" in row.get("notes", "").lower() else len(named.mtp)
        mtp = _count(row, "mtp_layers", mtp)
        return replace(named, mtp=(named.mtp or (named.blocks[-1],))[:1] * mtp)
    for key in ("layers", "hidden", "heads"):
        _count(row, key)
    if row.get("kv_heads", "").upper() == "MLA":
        raise InputError(
            "kv_heads: MLA, whose ranks are not stated, of a model that is not shipped"
        )
    return _by_shape(row, assumed)


def _named(row: Row) -> ModelDescription | None:
    try:
        named = shipped_model(row.get("model", ""))
    except InputError:
        return None
    layers, hidden = _number(row, "layers"), _number(row, "hidden")
    heads, vocabulary = _number(row, "heads"), _number(row, "vocab")
    attention = named.blocks[0].attention
    agrees = (
        layers in (None, len(named.blocks))
        and hidden in (None, named.hidden)
        and (attention is None or heads in (None, attention.heads))
        and vocabulary in (None, named.vocabulary)
    )
    return named if agrees else None


def _by_shape(row: Row, assumed: list[str]) -> ModelDescription:
    """Return a GPT (GELU, layer norms, learned positions) or a Llama (gated, RMS norms)."""
    hidden, heads = _count(row, "hidden"), _count(row, "heads")
    kv_heads = _count(row, "kv_heads", heads)
    if not hidden or not heads or hidden % heads or kv_heads == 0 or heads % kv_heads:
        raise InputError(f"heads: {heads} and {kv_heads} for a model of width {hidden}")
    experts = _count(row, "experts", 0)
    width = _count(row, "ffn", 0) or (0 if experts else 4 * hidden)
    name = row.get("model", "") or "model"
    vocabulary = _count(row, "vocab", 0)
    if not vocabulary:
        vocabulary = GPT_VOCABULARY
        assumed.append(f"vocabulary of {vocabulary}")
    usual = (width != 4 * hidden and experts == 0) or kv_heads != heads
    candidates = [
        _shaped(row, name, hidden, heads, kv_heads, width, vocabulary, gated=gated, tied=tied)
        for gated in (usual, not usual)
        for tied in (not gated, gated)
    ]
    published = 1e9 * (_number(row, "params_b") or 0.0)
    errors = [abs(one.parameters - published) for one in candidates]
    if not published or errors[0] <= 0.015 * published:  # as the sources round
        return candidates[0]
    return candidates[errors.index(min(errors))]


def _shaped(
    row: Row,
    name: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    width: int,
    vocabulary: int,
    *,
    gated: bool,
    tied: bool,
) -> ModelDescription:
    bloom = bool(re.match(r"bloom", name, re.IGNORECASE))
    bias = not gated
    attention = Attention(heads, kv_heads, hidden // heads, bias=bias, output_bias=bias)
    norm = Norm.RMS if gated else Norm.LAYER
    # Dropout as in GPT-3; BLOOM's and MPT's configurations have none.
    dropout = not gated and not re.match(r"bloom|mpt", name, re.IGNORECASE)
    dense = Block(
        attention, feed_forward=FeedForward(width or 1, gated, bias), norm=norm, dropout=dropout
    )
    sparse = dense
    count = _count(row, "experts", 0)
    if count:
        experts = Experts(
            count, _count(row, "topk"), _count(row, "moe_ffn", width), gated=gated, bias=bias,
            shared_width=_count(row, "shared_ffn", 0),
        )  # fmt: skip
        sparse = replace(dense, feed_forward=None, experts=experts)
    layers, every = _count(row, "layers"), max(1, _count(row, "expert_every", 1))
    first = _count(row, "first_dense", 0)
    return ModelDescription(
        name,
        hidden,
        vocabulary,
        tuple(
            sparse if layer >= first and (layer + 1) % every == 0 else dense
            for layer in range(layers)
        ),
        tied=tied,
        positions=0 if gated or bloom else _count(row, "seq"),
        more_embedding=2 * hidden if bloom else 0,
        source=row.get("source", ""),
    )


# The layout.


def _software(row: Row) -> Software:
    text = " ".join((source_of(row), row.get("source", ""), row.get("notes", ""))).lower()
    for pattern, software in SOFTWARE:
        if re.search(pattern, text):
            return software
    if "fsdp" in row.get("zero", "").lower():
        return Software.FSDP
    return Software.OTHER


def _layout(
    row: Row, description: ModelDescription, software: Software, assumed: list[str]
) -> Layout:
    devices = _count(row, "gpus")
    if not row.get("tp") and not row.get("pp") and not row.get("dp") and devices > 1:
        raise InputError("layout: none of tp, pp and dp is stated")
    tensor, pipeline = _count(row, "tp", 1), _count(row, "pp", 1)
    context, expert = _count(row, "cp", 1), _count(row, "ep", 1)
    shared = _count(row, "expert_tp", _count(row, "etp", 1))
    if min(tensor, pipeline, context, expert, shared, devices, _count(row, "dp", 1)) < 1:
        raise InputError("layout: a degree of 0")
    data = _count(row, "dp", 0) or devices // (tensor * pipeline * context)
    zero, group = _sharding(row, assumed)
    sequence = _count(row, "seq")
    global_batch = _count(row, "global_batch")
    schedule, chunks = _schedule(row, description, software, pipeline, assumed)
    modules = _recompute(row, assumed)
    recipe = _recipe(row, software, zero)
    attention = row.get("attention", "").lower()
    fused = bool(re.search(FUSED, attention)) or not re.search(UNFUSED, attention)
    if not attention:
        fused = "v100" not in row.get("gpu", "").lower()
        assumed.append("fused attention" if fused else "attention by matrix products")
    parallel = row.get("sp", "")
    if not parallel and tensor > 1:
        assumed.append("sequence parallelism beside tensor parallelism")
    layers = _stage_layers(row, description, pipeline * chunks)
    return Layout(
        tensor=tensor,
        sequence_parallel=tensor > 1 and (_count(row, "sp", 1) > 0),
        context=context,
        context_kind=_context_kind(row),
        pipeline=pipeline,
        chunks=chunks,
        data=data,
        expert=expert,
        expert_tensor=shared,
        dispatcher=_dispatcher(row),
        expert_capacity=_capacity(row),
        zero=zero,
        shard_group=group,
        microbatch=_microbatch(row, software, global_batch, data, pipeline * chunks, assumed),
        global_batch=global_batch,
        sequence=sequence,
        schedule=schedule,
        recompute=modules,
        recompute_layers=_count(row, "recompute_layers") if row.get("recompute_layers") else None,
        stage_layers=layers,
        recipe=recipe,
        software=software,
        fused_attention=fused,
        fused_norms=row.get("fused_norms", "1") != "0",
        mtp_stage=_count(row, "mtp_stage") if row.get("mtp_stage") else -1,
        overlap=_overlap(row, software, pipeline, assumed),
        offload_activations=_count(row, "offload_layers", 0) / max(1, len(description.blocks)),
        compiled=_compiled(row, software),
        graphs=_graphs(row),
    )


def _compiled(row: Row, software: Software) -> bool:
    """Whether operations are fused.

    Megatron's recipes that record the whole iteration do, and torchtitan compiles what it trains
    in 8 bits.
    """
    narrow = software is Software.TORCHTITAN and "fp8" in row.get("precision", "").lower()
    compiled = "torch.compile" in row.get("notes", "")
    return compiled or narrow or _graphs(row) is Graphs.ITERATION


def _graphs(row: Row) -> Graphs:
    text = row.get("graphs", "").lower()
    if text in ("", "none", "0"):
        return Graphs.NONE
    return Graphs.MODULES if "transformer_engine" in text else Graphs.ITERATION


def _capacity(row: Row) -> float:
    """Return the capacity of experts; 0, none dropped, where the row says so or nothing."""
    text = row.get("capacity", "")
    return float(text) if re.fullmatch(r"\d+(\.\d*)?", text) else 0.0


def _dispatcher(row: Row) -> Dispatcher:
    """Return how tokens reach experts; copies to each expert where the row does not say."""
    text = row.get("dispatcher", "").lower()
    if any(word in text for word in ("deepep", "hybridep", "hierarch", "flex")):
        return Dispatcher.HIERARCHICAL
    return Dispatcher.ALL_TO_ALL


def _context_kind(row: Row) -> ContextKind:
    text = row.get("cp_kind", "").lower()
    if "ulysses" in text or "a2a" in text or "all-to-all" in text:
        return ContextKind.ALL_TO_ALL
    if "gather" in text:
        return ContextKind.ALL_GATHER
    return ContextKind.RING


def _sharding(row: Row, assumed: list[str]) -> tuple[int, int]:
    """Return the ZeRO stage and the ranks of a group that shards; 0: all replicas."""
    text = row.get("zero", "").lower()
    if not text:
        assumed.append("no sharded optimizer")
        return 0, 0
    match = re.match(r"\D*([0-3])\b", text)
    if match is None:
        named = {"fsdp": 3, "full": 3, "hybrid": 3, "ddp": 0, "none": 0}
        stage = next((value for word, value in named.items() if word in text), None)
        if stage is None:
            raise InputError(f"zero: {text!r} names no stage")
    else:
        stage = int(match[1])
    over = re.search(r"over (\d+)", text)
    return stage, int(over[1]) if over else 0


def _schedule(
    row: Row,
    description: ModelDescription,
    software: Software,
    pipeline: int,
    assumed: list[str],
) -> tuple[JobSchedule, int]:
    """Return the schedule and the chunks of each pipeline rank."""
    text = row.get("schedule", "").lower()
    chunks = _count(row, "vpp", 0)
    if pipeline == 1:
        return JobSchedule.ONE_F_ONE_B, 1
    if "zb" in text or "zero" in text:
        if "v" in text.partition("-")[2]:
            raise InputError(f"schedule: {text!r} is none that the runtime runs")
        return (JobSchedule.ZB_H2 if "2" in text else JobSchedule.ZB_H1), 1
    if "gpipe" in text:
        return JobSchedule.GPIPE, 1
    if "interleav" in text and chunks == 0:
        # As many as Megatron's published recipes take at most, each of whole layers; in torchtitan
        # two.
        per_rank = -(-len(description.blocks) // pipeline)
        chunks = max((c for c in range(1, 13) if per_rank % c == 0), default=1)
        if software is Software.TORCHTITAN:
            chunks = 2
        assumed.append(f"{chunks} chunks per pipeline rank")
    if chunks > 1:
        return JobSchedule.INTERLEAVED, chunks
    if not text or text == "none":
        assumed.append("schedule 1f1b")
    return JobSchedule.ONE_F_ONE_B, 1


def _recompute(row: Row, assumed: list[str]) -> frozenset[Recompute]:
    text = row.get("recompute", "").lower()
    if not text:
        assumed.append("no recomputation")
        return frozenset()
    if text.startswith("full"):
        return frozenset({Recompute.FULL})
    if not text.startswith("selective"):
        return frozenset()
    inside = re.search(r"\(([^)]*)\)", text)
    words = re.split(r"[,\s]+", inside[1].strip()) if inside else ["attention"]
    known = {module.value: module for module in Recompute} | {
        "attention": Recompute.CORE_ATTENTION, "core": Recompute.CORE_ATTENTION,
    }  # fmt: skip
    unknown = [word for word in words if word and word not in known]
    if unknown:
        raise InputError(f"recompute: {unknown[0]!r} is no module that is known")
    return frozenset(known[word] for word in words if word)


def _recipe(row: Row, software: Software, zero: int) -> Recipe:
    """Return the recipe by precision, with the bytes per parameter that the row states."""
    recipe = _usual_recipe(row, software, zero)
    stated = {
        key: _number(row, key)
        for key in (
            "weight_bytes", "gradient_bytes", "master_bytes", "moment_bytes", "gather_bytes",
            "reduce_bytes",
        )
    }  # fmt: skip
    return replace(recipe, **{key: value for key, value in stated.items() if value is not None})


def _usual_recipe(row: Row, software: Software, zero: int) -> Recipe:
    """Return the recipe by precision; frameworks that shard weights keep them in 32 bits."""
    text = row.get("precision", "").lower()
    if not text:
        raise InputError("precision: not stated")
    sharded = software in (Software.FSDP, Software.TORCHTITAN) or zero == 3
    if "fp4" in text:
        return RECIPES["megatron-nvfp4"]
    if "mxfp8" in text or "fp8-mx" in text or "fp8_mx" in text:
        return RECIPES["megatron-mxfp8"]
    if "block" in text and "fp8" in text:
        return RECIPES["megatron-fp8-block"]
    if "fp8" in text:
        return RECIPES["fsdp-fp8" if sharded else "megatron-fp8"]
    words = " ".join((source_of(row), row.get("source", ""), row.get("notes", ""))).lower()
    # Software that is not Megatron's keeps gradients in 16 bits, as DeepSpeed's ZeRO paper has it.
    family = "zero" if software is Software.OTHER else "megatron"
    family = "deepspeed" if re.search(r"deepspeed|bigscience", words) else family
    if "bf16" in text:
        return RECIPES["fsdp-bf16" if sharded else f"{family}-bf16"]
    if "fp16" in text or "half" in text:
        return RECIPES[f"{family}-fp16"]
    if "32" in text:
        return RECIPES["fp32"]
    raise InputError(f"precision: {text!r} is not known")


def _microbatch(
    row: Row,
    software: Software,
    global_batch: int,
    data: int,
    stages: int,
    assumed: list[str],
) -> int:
    given = _count(row, "micro_batch", 0)
    if given:
        return given
    local = max(1, global_batch // data)
    # torchtitan divides a rank's batch into as many microbatches as there are model stages.
    size = max(1, local // stages) if software is Software.TORCHTITAN else 1
    assumed.append(f"microbatches of {size}")
    return size


def _stage_layers(row: Row, description: ModelDescription, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage: as stated, or one fewer at both ends where that divides."""
    text = row.get("stage_layers", "")
    if text:
        return tuple(int(number) for number in re.findall(r"\d+", text))
    layers = len(description.blocks)
    if stages == 1 or layers % stages == 0 or (layers + 2) % stages:
        return ()
    each = (layers + 2) // stages
    return (each - 1, *(each,) * (stages - 2), each - 1)


def _overlap(row: Row, software: Software, pipeline: int, assumed: list[str]) -> Overlap:
    """Return what runs beside computation; by software where the row does not say.

    Megatron reduced gradients after the backward pass before it had a distributed optimizer, and
    DeepSpeed does so in a pipeline. Zero bubble's own schedules step before norms are known and
    validate afterwards (sail-sg/zero-bubble-pipeline-parallelism@39f2c18, README and
    examples/pretrain_zero_bubble.sh).
    """
    text = row.get("overlap", "").lower()
    zero_bubble = "zb" in row.get("schedule", "").lower() and source_of(row) == "zerobubble"
    early = software is Software.MEGATRON or (
        software is Software.MEGATRON_DEEPSPEED and pipeline > 1
    )
    modern = not early or "distributed" in row.get("zero", "").lower()
    if not text:
        if modern:
            assumed.append("gradients and weights sent beside computation")
        return Overlap(gradients=modern, parameters=modern, iterations=zero_bubble)
    return Overlap(
        gradients=modern or "grad" in text,
        parameters=modern or "param" in text,
        tensor="tp" in text.replace("mtp", ""),
        experts="ep overlap" in text or "expert" in text,
    )


# The cluster and what was measured.


def _cluster(row: Row, assumed: list[str]) -> TrainingCluster:
    gpu = row.get("gpu", "")
    if not gpu:
        raise InputError("gpu: not stated")
    devices = _count(row, "gpus")
    per_node = min(_count(row, "gpus_per_node", 8) or 8, devices)
    name = re.sub(r"[,+:]", " ", gpu)
    size = f"{name}:{per_node}x{-(-devices // per_node)}"
    node = _node_gigabits(row)
    if node is not None:
        return training_cluster(f"{size},network={node / per_node:.6g}Gb/s")
    try:
        return training_cluster(size)
    except InputError as error:
        if "no usual network" not in str(error):
            raise
    assumed.append("a network of 100 Gb/s per node")
    return training_cluster(f"{size},network={100 / per_node:.6g}Gb/s")


def _node_gigabits(row: Row) -> float | None:
    """Return the gigabits per second of a node, as the row's words or its source say it."""
    notes = row.get("notes", "")
    cards = re.search(r"(\d+)\s*[x×]\s*(\d+)\s*Gb", notes)
    if cards:
        return float(cards[1]) * float(cards[2])
    whole = re.search(r"(\d+)\s*Gb(?:ps|/s)?\s*(?:/|per )node", notes)
    if whole:
        return float(whole[1])
    text = " ".join((row.get("gpu", ""), row.get("source", ""), notes)).lower()
    return next((rate for pattern, rate in NETWORKS.items() if re.search(pattern, text)), None)


def _seconds(
    row: Row, description: ModelDescription, layout: Layout, assumed: list[str]
) -> float | None:
    """Return the seconds of an iteration: as normalised in the file, or from what was measured."""
    given = _number(row, "iter_s")
    if given:
        return given
    tokens = _number(row, "tokens_per_s_per_gpu")
    if tokens:
        return layout.global_batch * layout.sequence / (tokens * layout.devices)
    measured, unit = _number(row, "measured"), row.get("unit", "").lower()
    if not measured:
        return None
    if unit.startswith("s/iter"):
        return measured
    if unit.startswith("ms/iter"):
        return measured / 1000
    shared = layout.devices if "/gpu" in unit or "/device" in unit else 1
    if unit.startswith("tokens/s"):
        return layout.global_batch * layout.sequence / (measured * shared)
    if unit.startswith("samples/s"):
        return layout.global_batch / (measured * shared)
    if unit.startswith("model tflop/s"):
        assumed.append("operations as Megatron-Bridge counts them: causal attention half")
        operations = layout.global_batch * layout.sequence * _operations(description, layout)
        return operations / (measured * 1e12 * shared)
    return None


def _operations(description: ModelDescription, layout: Layout) -> float:
    """Return the model's operations per token, without recomputation."""
    total = 6.0 * description.hidden * description.vocabulary if description.head else 0.0
    for block in description.blocks:
        total += 6.0 * block.parameters(description.hidden)
        if block.experts is not None:
            idle = 1 - block.experts.top_k / block.experts.experts
            total -= 6.0 * idle * block.routed_parameters(description.hidden)
        if block.attention is not None:
            one = block.attention
            total += 3.0 * layout.sequence * one.heads * (one.key_width + one.value_width)
    return total


def cases(rows: Sequence[Row]) -> tuple[list[Case], list[Refusal]]:
    """Return the rows that can be priced, and those that cannot."""
    made = [case_of(row) for row in _with_norms(rows)]
    return (
        [one for one in made if isinstance(one, Case)],
        [one for one in made if isinstance(one, Refusal)],
    )


def _with_norms(rows: Sequence[Row]) -> list[Row]:
    """Return rows with whether their norms are fused: all are, or those that say so.

    A source that names a kernel for root-mean-square norms in some rows has none in the others.
    """

    def named(row: Row) -> bool:
        text = " ".join((row.get("attention", ""), row.get("notes", ""), row.get("overlap", "")))
        kernel = r"(?<!no )(?<!without )(rms[ _-]?(norm)?[ _-]?kernel|fused[ _-]?rms)"
        return bool(re.search(kernel, text, re.IGNORECASE))

    some = {source_of(row) for row in rows if named(row)}
    return [
        {**row, "fused_norms": "0"} if source_of(row) in some and not named(row) else row
        for row in rows
    ]
