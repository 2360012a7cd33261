"""Processes that stand for ranks, on loopback; torch is imported once for all of them."""

from __future__ import annotations

import faulthandler
import io
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stagecut.runtime.measure.group import leave_group

#: Far above what any test takes: a rank that is still there then would never have ended.
HANGS_S = 150

#: What makes a rank write its stacks, and the time that it has for that.
STACKS, STACKS_S = signal.SIGUSR2, 2.0

#: What ranks compute on: ``cuda`` over NCCL, several ranks on a GPU if there are too few.
DEVICE = os.environ.get("STAGECUT_TEST_DEVICE", "cpu")

#: Where processes write, by file descriptors 1 and 2.
STREAMS = ("out", "err")


def start_server() -> None:
    """Start the process that all others are copies of, where it finds the modules of the tests."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(place for place in sys.path if place)
    try:
        forkserver.set_forkserver_preload(["rank_server"])
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def on_ranks(world: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """Return what `work(rank, *args)` returns on each rank of a process group."""
    results, codes = launched(world, _in_group, work, args)
    assert codes == [0] * world
    return results


def program_on_ranks(
    world: int, program: str | Path, *arguments: str | Path, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a script or a module (`stagecut`) as torchrun would, with the outputs of all ranks.

    What torchrun and its processes import takes them some ten seconds; a few tests start it.
    """
    words = [str(program), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as said:
        _, codes = launched(world, _run_program, folder, words, Path(said))
        out, err = (
            "".join((Path(said) / f"{stream}.{rank}").read_text() for rank in range(world))
            for stream in STREAMS
        )
    return subprocess.CompletedProcess(words, max(codes, key=abs), out, err)


def launched(
    world: int, work: Callable[..., Any], *args: Any, store: bool = True
) -> tuple[list[Any], list[int]]:
    """Run `work(rank, *args)` in processes with torchrun's environment.

    Parameters
    ----------
    store
        Whether the launcher keeps the store, as torchrun does; else rank 0 must.

    Returns
    -------
    list
        What it returned on each rank; None where it failed.
    list of int
        Exit codes.

    Raises
    ------
    AssertionError
        If a rank does not end: with the stacks of all that are left.
    """
    start_server()
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = kept.port
    if not store:
        del kept
    context = multiprocessing.get_context("forkserver")
    ends, processes = [], []
    until = time.monotonic() + HANGS_S
    with tempfile.TemporaryDirectory() as said:
        for rank in range(world):
            here, there = context.Pipe(duplex=False)
            environment = {
                "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": str(store),
                "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
            }  # fmt: skip
            if DEVICE == "cuda":
                cards = torch.cuda.device_count()
                environment["LOCAL_RANK"] = str(rank % cards)
                environment["LOCAL_WORLD_SIZE"] = str(min(world, cards))
                # NCCL takes several ranks on a GPU if it finds them on different hosts
                environment["NCCL_HOSTID"] = f"ranks {rank // cards}"
            stacks = Path(said) / str(rank)
            given = (there, environment, stacks, rank, work, args)
            process = context.Process(target=_rank, args=given)
            process.start()
            there.close()
            ends.append(here)
            processes.append(process)
        results: list[Any] = [None] * world
        left = list(ends)
        while left and time.monotonic() < until:
            for end in wait(left, 1):
                assert isinstance(end, Connection)
                left.remove(end)
                with suppress(EOFError):  # it failed; the exit code says so
                    made = io.BytesIO(end.recv())
                    results[ends.index(end)] = torch.load(
                        made, map_location="cpu", weights_only=False
                    )
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        if any(process.is_alive() for process in processes):
            done = [r for r, end in enumerate(ends) if end not in left]
            text = _stacks_of(processes, Path(said))
            raise AssertionError(f"a rank does not end; {done} have answered\n{text}")
    return results, [int(process.exitcode or 0) for process in processes]


def _stacks_of(processes: list[BaseProcess], said: Path) -> str:
    """End the ranks that are left; return what each of their threads was doing."""
    alive = [(rank, p) for rank, p in enumerate(processes) if p.is_alive() and p.pid is not None]
    for _, process in alive:
        with suppress(ProcessLookupError):
            os.kill(int(process.pid or 0), STACKS)
    time.sleep(STACKS_S)
    found = []
    for rank, process in alive:
        file = said / str(rank)
        stacks = file.read_text() if file.exists() else "it has not begun"
        found.append(f"rank {rank}, Python:\n{stacks}\n{_native_stacks(int(process.pid or 0))}")
    for process in processes:
        process.kill()
        process.join()
    return "\n".join(found)


def _native_stacks(pid: int) -> str:
    """Return the stacks of a process's threads in C++, those of gloo too; without gdb, names."""
    if shutil.which("gdb"):
        asked = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace 24"]
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
            return done.stdout
    tasks = Path(f"/proc/{pid}/task")
    names = [(t / "stat").read_text() for t in tasks.iterdir()] if tasks.is_dir() else []
    return "threads:\n" + "".join(names)


def _rank(
    end: Connection,
    environment: dict[str, str],
    stacks: Path,
    rank: int,
    work: Callable[..., Any],
    args: Any,
) -> None:
    # in C, as a thread may hold Python's lock; open to the end, which may be what hangs
    faulthandler.register(STACKS, stacks.open("w"))
    os.environ.update(environment)
    torch.set_num_threads(1)
    done = io.BytesIO()
    torch.save(work(rank, *args), done)
    end.send(done.getvalue())


def _run_program(rank: int, folder: Path, words: list[str], said: Path) -> None:
    os.chdir(folder)
    for number, stream in enumerate(STREAMS, start=1):
        file = os.open(said / f"{stream}.{rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.argv = words
    if words[0].endswith(".py"):
        runpy.run_path(words[0], run_name="__main__")
    else:
        runpy.run_module(words[0], run_name="__main__")


def _in_group(rank: int, work: Callable[..., Any], args: Any) -> Any:
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    result = work(rank, *args)
    leave_group()
    return result
