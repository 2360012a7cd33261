"""Solves on a Dask cluster of four workers on this machine, with one worker killed midway.

Each row is one solve by `auto` on a cluster of its own. In every second row, a process of the
cluster is killed while it has a task. The table gives objective and bound just before the kill and
at the end: nothing may have been lost. CPU seconds are those of the solve's own process and the
scheduler, without the workers. Prints Markdown.

    python benchmarks/cluster.py --time-limit 60 --kill-after 30 FILES
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

from distributed import LocalCluster

import stagecut
from stagecut.solvers.core.search import Point

#: Processes of the cluster.
SIZE = 4


def row(path: str, options: argparse.Namespace, *, kill: bool) -> str:
    """Solve once and return the row."""
    seen: list[Point] = []
    killed: list[str] = []
    done = threading.Event()
    with LocalCluster(
        n_workers=SIZE,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=":0",
        silence_logs=50,
    ) as local:

        def end_one() -> None:
            done.wait(options.kill_after)
            while not done.wait(0.2):
                busy = [w.address for w in local.scheduler.workers.values() if w.processing]
                pids = [n.pid for n in local.workers.values() if n.worker_address in busy[:1]]
                if pids and seen:
                    killed.append(f"{time.monotonic() - began:.0f} s: {_values(seen[-1])}")
                    os.kill(pids[0], signal.SIGKILL)
                    return

        began, cpu = time.monotonic(), time.process_time()
        thread = threading.Thread(target=end_one)
        if kill:
            thread.start()
        result = stagecut.solve(
            path,
            problem=stagecut.Throughput(split="noncontiguous"),
            limits=stagecut.Limits(seconds=options.time_limit, gap=options.gap),
            on_progress=lambda progress: seen.append(progress.point),
            workers=stagecut.Workers(scheduler=local.scheduler_address),
        )
        cpu = time.process_time() - cpu
        done.set()
    assert result.plan is not None, result.reason
    stagecut.verify(stagecut.load(path), result.plan)
    return (
        f"| {Path(path).stem} | {' '.join(killed) or 'none'} | {_values(result.plan)} "
        f"| {result.gap:.3%} | {result.seconds:.1f} | {cpu:.1f} | {'; '.join(result.notes)} |"
    )


def _values(of: Point | stagecut.Plan) -> str:
    return f"{of.objective:.6f}, {of.bound:.6f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", help="files")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per solve")
    parser.add_argument("--kill-after", type=float, default=30.0, help="seconds")
    parser.add_argument("--gap", type=float, default=0.0001, help="stop at this relative gap")
    options = parser.parse_args()
    print("| workload | killed: objective, bound | at the end | gap | s | CPU s | notes |")
    print("|---|---|---|---|---|---|---|")
    for path in options.workloads:
        for kill in (False, True):
            print(row(path, options, kill=kill), flush=True)


if __name__ == "__main__":
    main()
