"""Several processes search for one solve: what they share, and how they end."""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import portfolio_strategies as strategies
import psutil
import pytest
from brute import best_max_load
from conformance import Task, task

from stagecut import (
    InputError,
    Limits,
    Result,
    Throughput,
    Workers,
    Workload,
    accelerators_and_cpus,
    solve,
    verify,
)
from stagecut.api.common import Judge
from stagecut.formulations.task import pose
from stagecut.instances import Placement, Solution
from stagecut.solvers import METHODS, Method, Progress, Search, Solver
from stagecut.solvers.core import portfolio
from stagecut.solvers.core.method import Strategy
from stagecut.solvers.core.processes import NICENESS, LocalProcesses, Process
from stagecut.solvers.core.search import Found, Proved

OF = task("throughput", [1.0, 2.5, 3.0, 2.1])
#: Ends what hangs; no test waits for it.
LIMITS = Limits(seconds=120)
ONE, TWO = 8.6, 5.2

Asked = Callable[..., Result]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Solve by a method with a strategy beside it, which starts at once."""
    monkeypatch.setattr(portfolio, "START_AFTER_S", 0.0)

    def run(solver: Solver[Throughput], *beside: Solver[Throughput], **options: object) -> Result:
        given = [Strategy(function.__name__, function) for function in beside]
        method = Method(solver, strategies=lambda _task: given)
        monkeypatch.setitem(METHODS["throughput"], "tested", method)
        named: dict[str, object] = {"limits": LIMITS, "workers": 1 + len(beside), **options}
        result = solve(OF.workload, OF.cluster, OF.problem, method="tested", **named)  # type: ignore[arg-type]
        assert result.plan is not None
        verify(OF.workload, result.plan)
        assert not workers_left()
        return result

    return run


def workers_left() -> list[psutil.Process]:
    """Worker processes of this one."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if any("core.processes import main" in word for word in child.cmdline())
    ]


def test_plans_and_bounds_go_both_ways_while_it_runs(asked: Asked) -> None:
    result = asked(strategies.waits, strategies.answers)
    assert result.status == "optimal"
    assert result.objective == pytest.approx(TWO)
    assert result.bound_origin == "an answer"
    assert result.plan is not None
    assert result.plan.certificate == {"origin": "an answer", "by": "a worker"}
    assert "beside this process: worker 1 (answers)" in result.notes
    assert "best plan by worker 1 (answers); bound by worker 1 (answers)" in result.notes


def test_a_killed_and_a_failed_worker_lose_nothing(asked: Asked) -> None:
    result = asked(strategies.waits_alone, strategies.dies, strategies.fails)
    assert result.objective == pytest.approx(TWO)
    assert any("worker 1 (dies) killed by signal 9" in note for note in result.notes)
    assert any("fails failed (ArithmeticError: on purpose)" in note for note in result.notes)


def test_nothing_is_left_to_a_starved_worker(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "STARVED_S", 0.2)
    result = asked(strategies.computes_alone, strategies.starves)
    assert result.bound_origin == "alone"


def test_a_worker_yields_to_its_solve_where_cores_are_short() -> None:
    worker = Process(strategies.tells_its_place, None)
    session, group, niceness = worker.receive()
    with pytest.raises(EOFError, match="ended with code 0"):
        worker.receive()
    worker.close()
    assert session == os.getsid(0)  # else the scheduler may count it as another user's work
    assert group != os.getpgrp()
    assert niceness == min(os.nice(0) + NICENESS, 19)


def test_the_deadline_ends_a_worker_that_does_not_listen(asked: Asked) -> None:
    result = asked(strategies.waits, strategies.does_not_listen, limits=Limits(seconds=4.0))
    assert result.limit == "time"


def test_ctrl_c_ends_workers_and_keeps_their_plan(asked: Asked) -> None:
    before = signal.getsignal(signal.SIGINT)
    pressed: list[float] = []

    def press(progress: Progress) -> None:
        if not pressed and progress.point.objective < ONE:
            pressed.append(progress.point.objective)
            signal.raise_signal(signal.SIGINT)

    result = asked(strategies.waits, strategies.does_not_listen, on_progress=press)
    assert pressed == pytest.approx([TWO])
    assert result.limit == "interrupt"
    assert result.objective == pytest.approx(TWO)
    assert signal.getsignal(signal.SIGINT) is before


def test_one_worker_is_this_process(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(LocalProcesses, "start")
    alone = asked(strategies.waits, workers=1, limits=Limits(seconds=0.2))
    assert alone.objective == pytest.approx(ONE)
    assert alone.notes == ()


def test_short_solves_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "START_AFTER_S", 60.0)
    monkeypatch.delattr(LocalProcesses, "start")
    result = solve(OF.workload, OF.cluster, OF.problem, workers=2)
    assert result.status == "optimal"


def test_a_wrong_claim_of_a_worker_is_refused_and_its_plan_judged_anew() -> None:
    search = Search[Solution](Limits(), lambda solution: float(solution.device.sum()))
    search.offer(Placement(np.array([1, 1])))
    search.learn(Proved(3.0, "a lie", {}), "a worker")
    search.learn(Found(Placement(np.array([0, 5])), 0.0), "a worker")
    assert not search.should_stop()
    assert search.objective == 2.0
    assert math.isinf(search.bound)
    assert any("a lie claims bound 3" in note for note in search.notes)


def test_a_number_of_workers_below_one_is_bad_input() -> None:
    with pytest.raises(InputError, match="workers: 0; it must be at least 1"):
        Workers(0)


def random_case(seed: int) -> tuple[Workload, Throughput]:
    """Nodes with random costs and edges."""
    rng = np.random.default_rng(seed)
    n = 7
    edges = [(u, v) for u in range(n) for v in range(u + 1, n) if rng.random() < 0.4]
    times = rng.uniform(1.0, 5.0, n)
    workload = Workload(
        name=f"case {seed}",
        ids=tuple(range(n)),
        edges=np.array(edges).reshape(-1, 2),
        times={"accelerator": times, "cpu": 4 * times},
        memory_bytes=np.ones(n),
        transfer=rng.uniform(0.1, 1.0, n),
    )
    return workload, Throughput(split="noncontiguous" if seed % 2 else "contiguous")


@pytest.mark.parametrize("seed", [0, 1])
def test_two_workers_find_what_brute_force_finds(seed: int) -> None:
    workload, problem = random_case(seed)
    cluster = accelerators_and_cpus(2, 1, 5.0)
    best = best_max_load(workload, cluster, problem)
    result = solve(
        workload, cluster, problem, limits=LIMITS, workers=Workers(2, deterministic=True)
    )
    assert result.status == "optimal"
    assert result.objective == pytest.approx(best)


def test_deterministic_workers_agree_with_themselves() -> None:
    workload, problem = random_case(3)
    found = [
        solve(
            workload,
            accelerators_and_cpus(3, 1, 5.0),
            problem,
            method="column-generation",
            limits=Limits(seconds=120, nodes=1, seed=5),
            workers=Workers(2, deterministic=True),
        )
        for _ in range(2)
    ]
    one, other = (repr((r.objective, r.bound, r.bound_origin, r.plan)) for r in found)
    assert one == other


#: Starts a worker, says its number, and is killed.
ORPHANED = """
import portfolio_strategies as strategies, time
from stagecut.solvers.core.processes import Process
print(Process(strategies.sleeps, None).receive(), flush=True)
time.sleep(1000)
"""


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANED],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        worker = psutil.Process(number)
        parent.kill()
    worker.wait(timeout=60)


def test_a_port_that_says_nothing_is_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = pytest.importorskip("stagecut.solvers.core.dask_cluster")
    monkeypatch.setattr(cluster, "CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            InputError, match=f"no Dask scheduler answers at .*{where}.*: timed out"
        ):
            solve(OF.workload, OF.cluster, OF.problem, workers=Workers(2, scheduler=where))


def test_a_cluster_goes_on_when_a_machine_leaves(asked: Asked) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        host="127.0.0.1",
        silence_logs=50,
    ) as local:
        killed = threading.Event()

        def kills(of: object, search: Search[Solution]) -> None:
            search.offer(strategies.all_on(0, of))  # type: ignore[arg-type]
            while not search.should_stop():
                if search.objective < ONE and not killed.is_set():
                    busy = next(w for w in local.scheduler.workers.values() if w.processing)
                    nanny = next(
                        n for n in local.workers.values() if n.worker_address == busy.address
                    )
                    killed.set()
                    os.kill(nanny.pid, signal.SIGKILL)
                    search.raise_bound(strategies.AFTER_THE_KILL, "the kill")
                time.sleep(0.01)

        result = asked(
            kills,
            strategies.begins_twice,
            workers=Workers(2, scheduler=local.scheduler_address),
        )
    assert killed.is_set()
    assert result.status == "optimal"
    assert result.objective == pytest.approx(TWO)
    assert result.bound_origin == "a second life"
    assert any("its machine left; begun again on another" in note for note in result.notes)


BESIDE = [
    (name, task(name, [1.0, 2.5, 3.0, 2.1, 1.7]))
    for name in ("throughput", "iteration", "latency", "mapping", "sharding")
]


@pytest.mark.parametrize("of", [of for _, of in BESIDE], ids=[name for name, _ in BESIDE])
def test_strategies_are_solvers_that_other_processes_find(of: Task) -> None:
    judge = Judge(of.workload, of.cluster, of.problem)
    posed = pose(of.workload, of.cluster, of.problem)
    best = solve(of.workload, of.cluster, of.problem, limits=LIMITS)
    assert best.objective is not None
    beside = METHODS[posed.problem.name]["auto"].strategies(posed)
    assert beside
    for strategy in beside:
        search: Search[Solution] = Search(Limits(seconds=20, nodes=3), judge)
        run: Strategy = pickle.loads(pickle.dumps(strategy))
        run.solve(posed, search)
        assert not [note for note in search.notes if "defect" in note]
        assert search.objective >= best.objective * (1 - 1e-9)
        assert search.bound <= best.objective * (1 + 1e-6)
        assert search.best is not None or math.isfinite(search.bound)
