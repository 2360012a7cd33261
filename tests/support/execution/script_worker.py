"""A rank that runs scripts one after the other, as torchrun would start it."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import torch
import torch.distributed.pipelining  # imported before ranks are forked off


def run_scripts(rank: int, ranks: int, port: int, folder: Path, scripts: Sequence[str]) -> None:
    """Run scripts in a folder; what SCRIPT prints goes to the file SCRIPT.RANK."""
    os.chdir(folder)
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({key: str(value) for key, value in own.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    sys.argv[1:] = ["--steps", "3"]
    for script in scripts:
        with open(f"{script}.{rank}", "w") as out, redirect_stdout(out):
            runpy.run_path(script, run_name="__main__")
