"""A rank that runs scripts one after the other, as torchrun would start it."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import torch


def run_scripts(
    rank: int, ranks: int, ports: Sequence[int], folder: Path, scripts: Sequence[str]
) -> None:
    """Run scripts in a folder, each with its port; what SCRIPT prints goes to SCRIPT.RANK.

    A port that the script before used may still be held by its store when the next begins.
    """
    os.chdir(folder)
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({key: str(value) for key, value in own.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    sys.argv[1:] = ["--steps", "3"]
    for port, script in zip(ports, scripts, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        with open(f"{script}.{rank}", "w") as out, redirect_stdout(out):
            runpy.run_path(script, run_name="__main__")
