"""`stagecut estimate`: what a training iteration takes under a layout, from shapes alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..instances import InputError
from ..instances.costs.layout import (
    RECIPES,
    ContextKind,
    Dispatcher,
    Graphs,
    JobSchedule,
    Layout,
    Overlap,
    Recompute,
    Software,
)
from .common import names, options
from .common.console import OUT, check_outputs, new_table, print_json, show_bytes, show_percent

if TYPE_CHECKING:
    from ..api.estimate import Estimate
    from ..instances.costs.description import ModelDescription

#: What `--overlap` names; see `Overlap`.
OVERLAPPING = ("gradients", "parameters", "tensor", "experts", "messages", "iterations")


def estimate(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=names.complete_description,
            help="A shipped description such as llama3-70b, a Hugging Face config.json, or a file "
            "of profile --train --layers.",
        ),
    ],
    cluster: Annotated[
        str, typer.Option(help="Such as h100:8x16 (16 nodes of 8), or a cluster file.")
    ],
    global_batch: Annotated[int, typer.Option(help="Sequences per iteration.")],
    tp: Annotated[int, typer.Option(help="Tensor-parallel degree.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline ranks.")] = 1,
    dp: Annotated[
        int | None, typer.Option(help="Replicas; default: what the other degrees leave.")
    ] = None,
    cp: Annotated[int, typer.Option(help="Context-parallel degree.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel degree.")] = 1,
    etp: Annotated[int, typer.Option(help="Tensor-parallel degree of experts.")] = 1,
    microbatch: Annotated[int, typer.Option(help="Sequences per pass.")] = 1,
    sequence: Annotated[
        int | None,
        typer.Option(help="Tokens per sequence; default: 4096, or the model's learned positions."),
    ] = None,
    sp: Annotated[
        bool | None,
        typer.Option("--sp/--no-sp", help="Sequence parallelism; default: where --tp is above 1."),
    ] = None,
    chunks: Annotated[int, typer.Option(help="Model stages per pipeline rank.")] = 1,
    schedule: Annotated[
        JobSchedule | None,
        typer.Option(help="Default: 1f1b, with --chunks interleaved."),
    ] = None,
    stage_layers: Annotated[
        str | None, typer.Option(help="Layers of each stage, such as 7,8,8,7; default: even.")
    ] = None,
    zero: Annotated[
        int,
        typer.Option(help="What replicas divide: 0 nothing, 1 optimizer, 2 gradients, 3 weights."),
    ] = 1,
    shard_group: Annotated[
        int, typer.Option(help="Ranks that divide it; default 0: all that hold the same weights.")
    ] = 0,
    recompute: Annotated[
        str,
        typer.Option(
            help="none, full, or modules such as core_attn,layernorm,mlp,moe_act,mla_up_proj,op."
        ),
    ] = "none",
    recompute_layers: Annotated[
        int | None, typer.Option(help="Of each stage; default: all.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.complete_recipe,
            help="Precision and bytes per parameter; default: megatron-bf16, with --zero 3 "
            "fsdp-bf16.",
        ),
    ] = None,
    software: Annotated[
        Software | None,
        typer.Option(help="Whose kernels; default: megatron, with --zero 3 fsdp."),
    ] = None,
    cp_kind: Annotated[
        ContextKind, typer.Option(help="How keys and values move; all-to-all is Ulysses.")
    ] = ContextKind.RING,
    dispatcher: Annotated[
        Dispatcher, typer.Option(help="Of tokens to experts; hierarchical: DeepEP, HybridEP.")
    ] = Dispatcher.ALL_TO_ALL,
    attention: Annotated[
        str, typer.Option(help="fused (flash attention), or unfused: scores lie in memory.")
    ] = "fused",
    overlap: Annotated[
        str,
        typer.Option(help=f"What runs beside computation: none, or of {', '.join(OVERLAPPING)}."),
    ] = "gradients,parameters,messages",
    graphs: Annotated[
        Graphs, typer.Option(help="Kernels that recorded (CUDA) graphs launch, without the host.")
    ] = Graphs.NONE,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="A compiler fuses pointwise operations.")
    ] = False,
    offload_activations: Annotated[
        float, typer.Option(help="Fraction kept in host memory, from 0 to 1.")
    ] = 0.0,
    offload_optimizer: Annotated[
        float, typer.Option(help="Fraction kept in host memory, from 0 to 1.")
    ] = 0.0,
    order: Annotated[
        str, typer.Option(help="Axes from neighbouring ranks to distant ones.")
    ] = "tensor,context,data,pipeline",
    measured: Annotated[
        Path | None,
        typer.Option(
            help="What stagecut measure --products --json printed: your own links and matrix "
            "products."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time and memory by term: .svg, .png or .pdf.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Price one training iteration of MODEL: seconds and bytes by term. Nothing is run.

    Contradictory degrees end with code 2. Conventions: TFLOP/s count the model's operations alone
    (no recomputation, attention whole), MFU is over the peak of the precision computed in.
    """
    from ..api.estimate import estimate as price
    from ..instances.costs.clusters import training_cluster
    from ..instances.costs.models import model_description

    check_outputs(pictures=[plot], inputs=[model, cluster, measured])
    described, machines = model_description(model), training_cluster(cluster)
    for option, degree in (("--tp", tp), ("--pp", pp), ("--cp", cp)):
        if degree < 1:
            raise InputError(f"{option}: {degree}; it must be at least 1")
    if dp is None:
        dp, left = divmod(machines.devices, tp * pp * cp)
        if left:
            raise InputError(
                f"--tp {tp} x --pp {pp} x --cp {cp} does not divide {machines.devices} devices of "
                f"{cluster}; change a degree, or the cluster"
            )
    sharded = zero == 3
    if schedule is None:
        interleaved = JobSchedule.INTERLEAVED
        schedule = interleaved if chunks > 1 else JobSchedule.ONE_F_ONE_B
    if software is None:
        software = Software.FSDP if sharded else Software.MEGATRON
    wanted = ("fsdp-bf16" if sharded else "megatron-bf16") if recipe is None else recipe
    if wanted not in RECIPES:
        raise InputError(f"--recipe: {wanted!r} is not one of {', '.join(RECIPES)}")
    layout = Layout(
        tensor=tp,
        sequence_parallel=tp > 1 if sp is None else sp,
        context=cp,
        context_kind=cp_kind,
        pipeline=pp,
        chunks=chunks,
        data=dp,
        expert=ep,
        expert_tensor=etp,
        dispatcher=dispatcher,
        zero=zero,
        shard_group=shard_group,
        microbatch=microbatch,
        global_batch=global_batch,
        sequence=_sequence(described) if sequence is None else sequence,
        schedule=schedule,
        recompute=_modules(recompute),
        recompute_layers=recompute_layers,
        stage_layers=_counts(stage_layers),
        recipe=RECIPES[wanted],
        software=software,
        fused_attention=_fused(attention),
        overlap=_overlap(overlap),
        graphs=graphs,
        compiled=compiled,
        offload_activations=offload_activations,
        offload_optimizer=offload_optimizer,
        order=tuple(axis.strip() for axis in order.split(",")),
    )
    found = price(described, layout, machines, measured=measured)
    if plot is not None:
        from ..runtime.pictures.style import save_picture

        save_picture(found.plot(), plot)
    if as_json:
        print_json(found.as_dict())
    else:
        print_estimate(found)
        if plot is not None:
            OUT.print(f"written: {plot}", highlight=False, soft_wrap=True)


def _sequence(model: ModelDescription) -> int:
    """Return the tokens of a sequence: as learned positions or a profile say, else 4096."""
    if any(block.profiled is not None for block in model.blocks):
        return 1
    return model.positions or 4096


def _modules(text: str) -> frozenset[Recompute]:
    words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
    if words in ([], ["none"]):
        return frozenset()
    return frozenset(Recompute.of("--recompute", word) for word in words)


def _counts(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        raise InputError(f"--stage-layers: {text!r}; write counts such as 7,8,8,7")
    return tuple(int(count) for count in text.split(","))


def _fused(text: str) -> bool:
    if text not in ("fused", "unfused"):
        raise InputError(f"--attention: {text!r} is not one of fused, unfused")
    return text == "fused"


def _overlap(text: str) -> Overlap:
    named = [] if text.strip() == "none" else [word.strip() for word in text.split(",")]
    wrong = next((word for word in named if word not in OVERLAPPING), None)
    if wrong is not None:
        raise InputError(f"--overlap: {wrong!r} is not one of none, {', '.join(OVERLAPPING)}")
    return replace(Overlap(), **{name: name in named for name in OVERLAPPING})


def print_estimate(found: Estimate) -> None:
    """Print seconds by term, then bytes by term of the ranks that differ."""
    from ..instances.costs.terms import MEMORY_TERMS, TIME_TERMS

    layout, device = found.layout, found.cluster.accelerator
    time = new_table(f"{found.model.name} on {layout.devices} {device.name}", "time", ("s", ""))
    for term, label in TIME_TERMS.items():
        seconds = found.terms.get(term, 0.0)
        if seconds > 0:
            time.add_row(label, f"{seconds:.4g}", show_percent(seconds / found.seconds))
    time.add_row("an iteration", f"{found.seconds:.4g}", "")
    OUT.print(time)
    OUT.print(_summary(found), highlight=False, soft_wrap=True)
    ranks = _few(found)
    memory = new_table("memory of a device (GiB)", "", (f"rank {rank}" for rank in ranks))
    for term, label in MEMORY_TERMS.items():
        values = [getattr(found.memory[rank], term) for rank in ranks]
        if any(values):
            memory.add_row(label, *(f"{value / 2**30:.2f}" for value in values))
    memory.add_row("in all", *(f"{found.memory[rank].held / 2**30:.2f}" for rank in ranks))
    OUT.print(memory)
    most = max(rank.needed for rank in found.memory)
    verdict = "it fits" if found.fits else "it does not fit"
    OUT.print(
        f"{verdict}: {show_bytes(most)} needed, of {show_bytes(found.memory_limit)}",
        highlight=False,
        soft_wrap=True,
    )


def _summary(found: Estimate) -> str:
    return (
        f"{found.seconds:.4g} s, {found.tokens_per_s:,.0f} tokens/s/GPU, "
        f"{found.flops_per_s / 1e12:.1f} TFLOP/s/GPU of the model, MFU {show_percent(found.mfu)} "
        f"of {found.layout.recipe.compute} (efficiencies: {found.calibration})"
    )


def _few(found: Estimate) -> list[int]:
    """Return up to four ranks; of more the first, the last and the fullest: a table has no room."""
    count = len(found.memory)
    if count <= 4:
        return list(range(count))
    fullest = max(range(count), key=lambda rank: found.memory[rank].held)
    return sorted({0, count - 1, fullest})
