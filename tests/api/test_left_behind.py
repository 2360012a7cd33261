"""A solver that does not stop in time is waited for when the script ends, not cut off within."""

from __future__ import annotations

import subprocess
import sys

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


def test_the_end_of_a_script_waits() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "greedy did not stop in time and was left behind",
        "through",
    ]
