"""Processes that stand for ranks, on loopback; torch is imported once for all of them."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["rank_server"])


def _start_server() -> None:
    """Start the process that all others are copies of, where it finds the modules of the tests."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def on_ranks(world: int, work: Callable[..., Any], *args: Any, limit_s: float = 300) -> list[Any]:
    """Return what `work(rank, *args)` returns on each rank of a process group over gloo.

    Raises
    ------
    AssertionError
        If a rank fails, with its traceback.
    """
    _start_server()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ends, processes = [], []
    for rank in range(world):
        here, there = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(
            target=_rank, args=(there, store.port, rank, world, work, args), daemon=True
        )
        process.start()
        there.close()
        ends.append(here)
        processes.append(process)
    results: dict[int, Any] = {}
    try:
        while len(results) < world:
            ready = wait([end for r, end in enumerate(ends) if r not in results], limit_s)
            assert ready, "the ranks take too long"
            for end in ready:
                assert isinstance(end, Connection)
                failed, data = end.recv()
                assert not failed, data
                results[ends.index(end)] = torch.load(io.BytesIO(data), weights_only=False)
    finally:
        for process in processes:
            if len(results) < world:
                process.kill()
            process.join()
    return [results[rank] for rank in range(world)]


def _rank(
    end: Connection, port: int, rank: int, world: int, work: Callable[..., Any], args: Any
) -> None:
    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        done = io.BytesIO()
        torch.save(work(rank, *args), done)
        dist.destroy_process_group()
        end.send((False, done.getvalue()))
    except BaseException:  # the parent shows it
        end.send((True, f"rank {rank}: {traceback.format_exc()}"))
