"""Process group of a run or measurement, and devices of its ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist

from ...instances import InputError, StagecutError
from ..execution.guard.failures import Guard, first_line

T = TypeVar("T")
#: Longest time that a rank waits for another one without a guard.
TIMEOUT = timedelta(seconds=60)


@contextmanager
def process_group(device: str, guard: Guard | None = None) -> Iterator[torch.device]:
    """Join the process group that torchrun's environment describes; yield this rank's device.

    Without torchrun it is a group of this process alone. The device is ``cpu`` (over gloo),
    ``cuda`` (over NCCL, a GPU per rank), or with ``auto`` ``cuda`` where there is one. A guard has
    a timeout of its own. Raises InputError if there is no such device for this rank, StagecutError
    if another rank does not answer.
    """
    place = choose_device(device)
    rank = os.environ.get("RANK", "0")
    given: dict[str, Any] = {"timeout": TIMEOUT}
    if guard is not None:
        given = {"store": guard.store, "rank": guard.rank, "world_size": guard.world}
        given["timeout"] = timedelta(seconds=2 * guard.timeout_s)  # the guard finds who is late
    elif "RANK" not in os.environ:
        store = dist.TCPStore("127.0.0.1", 0, world_size=1, is_master=True)
        given = {"store": store, "rank": 0, "world_size": 1}
    try:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo", **given)
    except (RuntimeError, ValueError) as error:
        raise StagecutError(f"rank {rank}: the ranks do not find each other: {error}") from None
    try:
        yield place
    except BaseException as error:
        if guard is not None:
            guard.fail(error)  # before anything waits for ranks that are gone
        elif isinstance(error, RuntimeError):
            raise StagecutError(
                f"rank {rank}: another rank stopped answering ({first_line(error)}); "
                "see what the others say first"
            ) from None
        raise
    finally:
        leave_group()


def threads_per_process(processes: int | None = None) -> int:
    """Return this process's share of its cores among some processes on this host.

    Default: as many processes as torchrun started here.
    """
    cores = len(psutil.Process().cpu_affinity()) if psutil.LINUX else os.cpu_count() or 1
    return max(1, cores // (processes or int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def rank_device() -> torch.device:
    """Return the device of this rank, by the backend of its process group."""
    cuda = "nccl" in dist.get_backend()
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def idle_at(device: torch.device) -> float:
    """Wait until a device is idle; return the time by `time.perf_counter`, in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def of_all_ranks(own: T) -> list[T]:
    """Return the values of all ranks, by rank; all of them call this."""
    everywhere = [own] * dist.get_world_size()
    dist.all_gather_object(everywhere, own)
    return everywhere


def leave_group() -> None:
    """End the process group."""
    # torch 2.6 holds Python's lock while it waits for gloo's threads to end, and one that is
    # about to let go of a tensor needs that lock: let them finish first.
    time.sleep(0.1)
    dist.destroy_process_group()


def choose_device(device: str) -> torch.device:
    """Return this rank's device by its option, as `process_group` does."""
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device: {device!r} is not one of auto, cpu, cuda")
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and not cards):
        return torch.device("cpu")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if cards < here:
        raise InputError(
            f"--device cuda: {here} ranks on this host and {cards} GPUs; NCCL needs a GPU per "
            "rank: start fewer, or measure with --device cpu"
        )
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(place)
    return place
