"""Origin of errors: waiting ranks, lost ranks, exceptions in one line."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType

import torch
import torch.distributed as dist

from ....instances import StagecutError
from ..own_loop import transport

#: Files in whose code a rank waits for others.
_WAITING = (transport.__file__, threading.__file__)
_WAITING_IN = os.path.dirname(dist.__file__) + os.sep


def waits(frame: FrameType) -> bool:
    """Whether this is the innermost frame of a waiting rank."""
    file = frame.f_code.co_filename
    return file in _WAITING or file.startswith(_WAITING_IN)


def is_of_waiting(error: BaseException) -> bool:
    """Whether an exception was raised where a rank waits for others."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and isinstance(error, RuntimeError) and waits(trace.tb_frame)


def place(frame: FrameType) -> str:
    """Return the innermost place that is not in torch."""
    root = os.path.dirname(torch.__file__) + os.sep
    at = frame
    while at.f_back is not None and at.f_code.co_filename.startswith(root):
        at = at.f_back
    return f"{os.path.basename(at.f_code.co_filename)}:{at.f_lineno}"


def lost_ranks(ranks: list[int]) -> str:
    """Return the text of the error that ranks no longer answer."""
    which = f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"
    return f"{which} gone: killed (for taking too much memory?), or the machine is down"


def error_line(error: BaseException) -> str:
    """Return an exception in one line."""
    line = first_line(error)
    cause = error.__cause__ or error
    if isinstance(cause, MemoryError | torch.OutOfMemoryError) or "allocate memory" in line:
        return f"out of memory: {line}"
    if isinstance(error, StagecutError):
        return line
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def tell_launcher(text: str) -> None:
    """Add the error's line to torchrun's report of failed processes."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        with suppress(OSError):  # then torchrun's report goes without it
            Path(file).write_text(
                json.dumps({"message": text, "timestamp": str(int(time.time()))}), encoding="utf-8"
            )


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
