"""`stagecut checkpoint …`: checkpoints that `stagecut run --checkpoint` wrote."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import typer

from ..instances.common.units import show_bytes
from .common.console import OUT, check_outputs, need, show_count, tell_written

app = typer.Typer(help="Checkpoints of runs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Checkpoints of runs."""


@app.command()
def merge(
    folder: Annotated[
        Path, typer.Argument(help="The folder given to --checkpoint, or one step-… in it.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
) -> None:
    """Write the state_dict of the whole model, for torch.load and `run --weights`.

    Of several checkpoints in FOLDER the newest is taken.
    """
    need("torch", "runtime")
    check_outputs(output)
    import torch

    from ..instances.formats.writing import write_whole
    from ..runtime.execution.checkpoint import merge_checkpoint

    state = merge_checkpoint(folder)
    written = io.BytesIO()
    torch.save(state, written)
    write_whole(output, written.getvalue())
    size = sum({x.data_ptr(): x.nbytes for x in state.values()}.values())
    OUT.print_wrapped(f"{show_count(len(state), 'tensor')}, {show_bytes(size)}")
    tell_written(output)
