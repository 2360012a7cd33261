"""`stagecut estimate`: seconds and bytes of a training iteration under a layout, from shapes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..instances import InputError
from ..instances.costs.layout import (
    RECIPES,
    JobSchedule,
    Layout,
    Recompute,
    Software,
)
from ..instances.formats.problem_toml import Table, make_record, read_setting
from .common import options
from .common.console import (
    OUT,
    check_outputs,
    new_table,
    print_json,
    show_bytes,
    show_count,
    show_percent,
)
from .common.pose import merged

if TYPE_CHECKING:
    from ..api.estimate import Estimate
    from ..instances.costs.description import ModelDescription


#: Field of the layout → the option that gives it.
OPTION_OF = {
    "tensor": "--tp", "context": "--cp", "pipeline": "--pp", "data": "--dp", "expert": "--ep",
    "chunks": "--chunks", "zero": "--zero", "microbatch": "--microbatch", "recipe": "--recipe",
    "recompute": "--recompute",
}  # fmt: skip


def estimate(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=options.complete_description,
            help="llama3-70b or another, a config.json, or a file of profile --train --layers.",
        ),
    ],
    cluster: Annotated[
        str, typer.Option(help="h100:8x16 (16 nodes of 8) or another, or a cluster file.")
    ],
    global_batch: Annotated[int, typer.Option(help="Sequences per iteration.")],
    tensor: Annotated[int, typer.Option("--tp", help="Tensor-parallel degree.")] = 1,
    pipeline: Annotated[int, typer.Option("--pp", help="Pipeline ranks.")] = 1,
    data: Annotated[
        int | None,
        typer.Option("--dp", help="Data-parallel degree; default: what the others leave."),
    ] = None,
    context: Annotated[int, typer.Option("--cp", help="Context-parallel degree.")] = 1,
    expert: Annotated[int, typer.Option("--ep", help="Expert-parallel degree.")] = 1,
    microbatch: Annotated[int, typer.Option(help="Sequences per microbatch.")] = 1,
    sequence: options.SequenceTokens = None,
    chunks: Annotated[int, typer.Option(help="Model stages per pipeline rank.")] = 1,
    schedule: Annotated[
        JobSchedule | None,
        typer.Option(
            metavar="NAME",
            help="1f1b (default), interleaved (default with --chunks), gpipe, zb-h1, zb-h2, zb-v, "
            "dualpipe-v.",
        ),
    ] = None,
    zero: Annotated[
        int,
        typer.Option(help="Sharded: 0 nothing, 1 optimizer, 2 gradients, 3 weights."),
    ] = 1,
    recompute: Annotated[
        str,
        typer.Option(
            help="none, full, or modules: core_attn, layernorm, mlp, moe_act, mla_up_proj, op "
            "(with commas)."
        ),
    ] = "none",
    recipe: Annotated[
        str | None,
        typer.Option(
            autocompletion=options.complete_recipe,
            help="Default: megatron-bf16, with --zero 3 fsdp-bf16.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="A field of the layout: software=fsdp. Repeatable.",
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="Measured links and products: measure --products --json."),
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
    for option, degree in (("--tp", tensor), ("--pp", pipeline), ("--cp", context)):
        if degree < 1:
            raise InputError(f"{option}: {degree}; it must be at least 1")
    if data is None:
        data, left = divmod(machines.devices, tensor * pipeline * context)
        if left:
            raise InputError(
                f"--tp {tensor} x --pp {pipeline} x --cp {context} does not divide "
                f"{machines.devices} devices of {cluster}; change a degree, or the cluster"
            )
    if schedule is None:
        interleaved = JobSchedule.INTERLEAVED
        schedule = interleaved if chunks > 1 else JobSchedule.ONE_F_ONE_B
    wanted = ("fsdp-bf16" if zero == 3 else "megatron-bf16") if recipe is None else recipe
    if wanted not in RECIPES:
        raise InputError(f"--recipe: {wanted!r} is not one of {', '.join(RECIPES)}")
    chosen: Table = {
        "tensor": tensor, "context": context, "pipeline": pipeline, "chunks": chunks,
        "data": data, "expert": expert, "zero": zero, "microbatch": microbatch,
        "global_batch": global_batch, "schedule": schedule, "recipe": RECIPES[wanted],
        "sequence": usual_sequence(described) if sequence is None else sequence,
        "recompute": _modules(recompute),
    }  # fmt: skip
    usual: Table = {
        "sequence_parallel": tensor > 1,
        "software": Software.FSDP if zero == 3 else Software.MEGATRON,
    }
    more: Table = {}
    for text in settings or ():
        more = merged(more, read_setting(text), "--set {}", "--set")
    for name in [one for one in more if one in chosen]:
        option = OPTION_OF.get(name, f"--{name.replace('_', '-')}")
        raise InputError(f"--set {name}: {option} gives it; write {option} in its place")
    layout = make_record(Layout, {**usual, **chosen, **more})
    found = price(described, layout, machines, measured=measured)
    if plot is not None:
        from ..runtime.pictures.style import save_picture

        save_picture(found.plot(), plot)
    if as_json:
        print_json(found.as_dict())
    else:
        print_estimate(found)
        if plot is not None:
            OUT.print_line(f"written: {plot}")


def usual_sequence(model: ModelDescription) -> int:
    """Return the default tokens of a sequence: 1 of a profile, the learned positions, or 4096."""
    if any(block.profiled is not None for block in model.blocks):
        return 1
    return model.positions or 4096


def _modules(text: str) -> list[Recompute]:
    words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
    if words in ([], ["none"]):
        return []
    return [Recompute.of("--recompute", word) for word in words]


def print_estimate(found: Estimate, allowed: float | None = None) -> None:
    """Print seconds by term, then bytes by term of the ranks that differ.

    `allowed` are the bytes of each device that may be used; None: all.
    """
    from ..instances.costs.activations import fused
    from ..instances.costs.terms import MEMORY_TERMS, TIME_TERMS

    layout = found.layout
    batch = show_count(layout.global_batch, "sequence")
    if layout.sequence > 1:
        batch = f"{layout.global_batch:,} × {layout.sequence:,} tokens"
    time = new_table(f"{found.model.name} on {found.cluster.kinds}, {batch}", "time", ("s", ""))
    for term, label in TIME_TERMS.items():
        seconds = found.terms.get(term, 0.0)
        if seconds > 1e-6 * found.seconds:
            time.add_row(label, f"{seconds:.4g}", show_percent(seconds / found.seconds))
    time.add_row("an iteration", f"{found.seconds:.4g}", "")
    OUT.print(time)
    OUT.print_line(_summary(found))
    if any(block.profiled is not None for block in found.model.blocks):
        OUT.print_line(
            f"layers take what the {found.model.source} says, whatever the cluster's devices"
        )
    ranks = _few(found)
    memory = new_table("memory of a device (GiB)", "", (f"rank {rank}" for rank in ranks))
    for term, label in MEMORY_TERMS.items():
        values = [getattr(found.memory[rank], term) for rank in ranks]
        if any(values):
            memory.add_row(label, *(f"{value / 2**30:.2f}" for value in values))
    memory.add_row("in all", *(f"{found.memory[rank].held / 2**30:.2f}" for rank in ranks))
    if len(found.cluster.nodes) > 1:
        memory.add_row("of", *(f"{found.memory_limits[rank] / 2**30:.2f}" for rank in ranks))
    OUT.print(memory)
    limits = [min(limit, allowed or limit) for limit in found.memory_limits]
    free, rank = min((limit - found.memory[k].needed, k) for k, limit in enumerate(limits))
    verdict = "it fits" if free >= 0 else "it does not fit"
    of = show_bytes(limits[rank]) + (" allowed" if limits[rank] < found.memory_limits[rank] else "")
    OUT.print_line(f"{verdict}: {show_bytes(found.memory[rank].needed)} needed, of {of}")
    if found.nearly_full:
        why = "PyTorch's allocator may slow down a device that is so full"
        if fused(layout):
            why = "less is free than the error of predicted peaks"
        room = show_bytes(found.safe_memory).replace(" ", "")
        OUT.print_line(f"{why}: have a layout ready that needs less (solve --memory {room})")


def _summary(found: Estimate) -> str:
    return (
        f"{found.seconds:.4g} s, {found.tokens_per_s:,.0f} tokens/s/GPU, "
        f"{found.flops_per_s / 1e12:.1f} TFLOP/s/GPU of the model, MFU {show_percent(found.mfu)} "
        f"of {found.layout.recipe.compute} (efficiencies: {found.calibration})"
    )


def _few(found: Estimate) -> list[int]:
    """Return all ranks up to four; of more the first, the last and the fullest, to fit a table."""
    count = len(found.memory)
    if count <= 4:
        return list(range(count))
    return sorted({0, count - 1, found.fullest})
