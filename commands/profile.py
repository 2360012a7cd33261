"""`stagecut profile`: a workload from a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..instances import InputError, Tied, Workload
from .common import options
from .common.console import (
    ERR,
    OUT,
    check_outputs,
    file_of,
    need,
    refuse,
    show_bytes,
    show_count,
    tell_written,
)

if TYPE_CHECKING:
    from ..instances.pytorch.factory import Made
    from ..instances.pytorch.profile import Profile

Depth = int | Literal["auto"] | None


def profile(
    model: Annotated[
        str, typer.Argument(help="module:factory, file.py:factory, or an .onnx file.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The workload to write.")],
    batch: Annotated[int | None, typer.Option(help="Samples per pass.", min=1)] = None,
    train: Annotated[bool, typer.Option("--train", help="Include the backward pass.")] = False,
    layers: Annotated[
        bool,
        typer.Option("--layers", help="For training plans: backward merged; --depth auto if none."),
    ] = False,
    degrees: Annotated[
        str | None,
        typer.Option(help="With --layers: tensor degrees to shard each layer over, such as 1,2,4."),
    ] = None,
    tensors: Annotated[
        bool,
        typer.Option("--tensors", help="For shardings: every ATen operator, with its tensors."),
    ] = False,
    estimate: Annotated[
        str | None,
        typer.Option(
            autocompletion=options.complete_machine,
            help="Roofline of this accelerator, such as h100 or b200; runs nothing.",
        ),
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(help="Group operators by modules at this call depth: 1, 2, …, or auto."),
    ] = None,
    tied: Annotated[
        Tied, typer.Option(help="Weights used twice become copies, or one colour (one device).")
    ] = Tied.COPIES,
    device: Annotated[
        str | None, typer.Option(help="Device to measure on: cpu, cuda, cuda:1.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of torch while measuring.", min=1)
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what was measured before.")
    ] = False,
    dtype: options.ModelType = None,
    shape: options.SampleShape = None,
    name: Annotated[str, typer.Option(help="Name of the workload.")] = "",
) -> None:
    """Trace MODEL and write it as a workload, its operators measured or estimated.

    The factory returns a torch.nn.Module, or (module, inputs); inputs are a tensor, a tuple or a
    dictionary. Then: stagecut solve WORKLOAD.
    """
    from ..instances.formats.files import save
    from ..instances.model.training_layers import training_layers

    if estimate is not None and threads is not None:
        raise InputError("--threads: an estimate runs nothing; leave one of the two out")
    if estimate is not None and fresh:
        raise InputError("--fresh: an estimate measures nothing; leave one of the two out")
    check_outputs(output, inputs=[model, file_of(model)])
    if layers and not train:
        raise InputError("--layers: layers are planned for training; add --train")
    if degrees is not None and not layers:
        raise InputError("--degrees: layers are spread over devices; add --layers")
    if tensors:
        others = {"--layers": layers, "--depth": depth, "--tied": tied is not Tied.COPIES}
        _check_tensors(model, train, {**others, "--fresh": fresh})
    if model.endswith(".onnx"):
        refused = {
            "--train": train,
            "--device": device,
            "--dtype": dtype,
            "--input": shape,
            "--threads": threads,
            "--fresh": fresh,
        }
        workload = _from_onnx(model, refused, estimate, batch, _depth(depth), tied, name)
    else:
        need("torch", "runtime")
        from ..instances.pytorch.factory import make

        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        factory = partial(make, model, batch=batch, shape=shape, dtype=dtype, device=device)
        if tensors:
            workload = _with_tensors(factory, estimate, name)
        else:
            merged = _depth(depth or "auto" if layers else depth)
            done = _from_pytorch(factory, estimate, merged, tied, name, train=train, fresh=fresh)
            workload = done.workload
        if degrees is not None:
            workload = _by_degree(done, degrees, estimate)
        elif layers:
            workload = training_layers(workload)
    save(workload, output)
    _describe(workload)
    tell_written(output)


def _from_onnx(
    model: str,
    refused: Mapping[str, object],
    estimate: str | None,
    batch: int | None,
    depth: Depth,
    tied: Tied,
    name: str,
) -> Workload:
    refuse(refused, "an ONNX file is a graph for inference")
    if estimate is None:
        raise InputError(f"{model}: ONNX files are not run; name a device: --estimate h100")
    need("onnx", "onnx")
    from ..instances.onnx_file import read_onnx

    return read_onnx(model, estimate, batch=batch, depth=depth, tied=tied, name=name)


def _from_pytorch(
    factory: Callable[[], Made],
    estimate: str | None,
    depth: Depth,
    tied: Tied,
    name: str,
    *,
    train: bool,
    fresh: bool,
) -> Profile:
    from ..instances.pytorch.profile import profile as profile_model

    with ERR.status("building the model …") as status:
        made = factory()
        status.update("tracing and timing …" if estimate is None else "tracing …")
        done = profile_model(
            made.model,
            made.args,
            made.kwargs,
            name=name,
            training=train,
            estimate=estimate,
            depth=depth,
            tied=tied,
            fresh=fresh,
        )
    for note in done.notes:
        style = "yellow" if note.startswith("warning:") else "dim"
        OUT.print_line(note, style=style)
    if train and not done.workload.backward.any():
        note = "warning: there is no backward pass: nothing that is returned depends on a parameter"
        OUT.print_line(f"{note} that wants a gradient", style="yellow")
    return done


def _by_degree(done: Profile, text: str, estimate: str | None) -> Workload:
    from ..api.tensor_degrees import layers_by_degree

    try:
        wanted = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--degrees: {text!r} is no list of whole numbers; write for example 1,2,4"
        ) from None
    with ERR.status("sharding the layers …"):
        return layers_by_degree(done, wanted, estimate=estimate)


def _with_tensors(factory: Callable[[], Made], estimate: str | None, name: str) -> Workload:
    from ..instances.pytorch.tensors import tensor_program

    with ERR.status("building the model …") as status:
        made = factory()
        if not made.model.training:
            made.model.train()
        status.update("tracing and timing …" if estimate is None else "tracing …")
        workload = tensor_program(made.model, made.args, made.kwargs, estimate=estimate, name=name)
    program = workload.program
    if program is not None and program.unruled:
        kinds = ", ".join(sorted({o.kind for o in program.unruled}))
        note = f"without a rule, on every device: {show_count(len(program.unruled), 'operator')}"
        OUT.print_line(f"{note}, {kinds}", style="dim")
    return workload


def _check_tensors(model: str, train: bool, given: Mapping[str, object]) -> None:
    """Refuse what does not go with ``--tensors``."""
    if not train:
        raise InputError("--tensors: shardings are planned for training; add --train")
    if model.endswith(".onnx"):
        raise InputError("--tensors: an ONNX file is a graph for inference; name a PyTorch model")
    refuse(given, "not with --tensors")


def _depth(text: str | None) -> Depth:
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--depth: {text!r}; it must be auto or a whole number of at least 1")
    return int(text)


def _describe(workload: Workload) -> None:
    total = {key: float(values.sum()) for key, values in workload.extra.items()}
    time = float(workload.times["accelerator"].sum())
    what = (
        "memory" if workload.program is None else "tensors made"
    )  # a sharding adds optimizer state
    OUT.print_line(
        f"{workload.name}: {show_count(workload.n, 'node')}, "
        f"{show_count(len(workload.edges), 'edge')}, "
        f"{total['parameters']:,.0f} parameters, {total['flops']:.4g} FLOPs, "
        f"{show_bytes(float(workload.memory_bytes.sum()))} of {what}, {time:.4g} "
        f"{workload.time_unit} on one device ({workload.provenance['cost_model']})"
    )
