"""A solver that does not stop in time is waited for when the script ends, not cut off within."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from conformance import task

from stagecut import Limits, Throughput, accelerators_and_cpus, solve
from stagecut.solvers.core import session

SCRIPT = """
import importlib, time
import stagecut

module = importlib.import_module("stagecut.solvers.core.session")
run_method = module.run_method


def slow(*given, **named):
    run_method(*given, **named)
    time.sleep(1)
    print("through", flush=True)


module.run_method, module.GRACE_S = slow, 0.1
workload, cluster = stagecut.load("gpt2-xl"), stagecut.accelerators_and_cpus(2)
limits = stagecut.Limits(seconds=0.5)
result = stagecut.solve(workload, cluster, method="greedy", limits=limits, workers=1)
print(result.notes[-1], flush=True)
"""


def ended(script: str) -> tuple[list[str], str]:
    """Run a script to its end, and return what it says on both streams."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_the_end_of_a_script_waits() -> None:
    said = ["greedy did not stop in time and was left behind", "through"]
    assert ended(SCRIPT) == (said, "")


def test_who_waits_for_compiling_is_told() -> None:
    said, _ = ended(SCRIPT.replace("limits =", "module.compiling = lambda: True\nlimits ="))
    assert said[0].startswith("the time was up while greedy was being compiled, once per machine")


def test_the_end_of_a_script_says_what_it_waits_for() -> None:
    """The solver ends when that is said, and not before."""
    told = (
        "import sys, threading, types\n"
        "told = threading.Event()\n"
        "def tell(text):\n"
        "    told.set()\n"
        "    return sys.__stderr__.write(text)\n"
        "sys.stderr = types.SimpleNamespace(write=tell, flush=sys.__stderr__.flush)\n"
    )
    script = told + SCRIPT.replace("time.sleep(1)", "told.wait()") + "module.LEFT_S = 0.01\n"
    said, waits = ended(script)
    assert said[-1] == "through"
    assert waits == "waiting for a solver to end; Ctrl-C ends at once\n"


@pytest.mark.parametrize("stuck", [False, True])
def test_a_first_plan_is_waited_for_while_it_is_computed(
    stuck: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine whose cores others have nearly all of the time: by clocks of the test."""
    run_method, look = session.run_method, session.Portfolio.look
    now, computed, looks, ended = [0.0], [0.0], [0], threading.Event()

    def slowly(*given: Any) -> None:
        for _ in range(4):
            now[0] += 0.6 * session.STUCK_S
            computed[0] += 0.0 if stuck else 2 * session.PROGRESS_S
            seen = looks[0]
            while looks[0] < seen + 2 and not ended.is_set():
                time.sleep(0.01)
        run_method(*given)

    def looked(portfolio: Any) -> None:
        looks[0] += 1
        look(portfolio)

    monkeypatch.setattr(session, "GRACE_S", 0.0)
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(session, "_computed", lambda: computed[0])
    monkeypatch.setattr(session.Portfolio, "look", looked)
    monkeypatch.setattr(session, "run_method", slowly)
    workload = task("iteration", [7.0, 1.0, 2.0, 1.0]).workload
    result = solve(
        workload, accelerators_and_cpus(2), Throughput("contiguous"), method="greedy",
        limits=Limits(seconds=1e-9), workers=1,
    )  # fmt: skip
    ended.set()
    assert (result.plan is None) == stuck, result.notes
