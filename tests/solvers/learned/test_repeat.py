"""The same seed gives the same samples, bit for bit, in another process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from project import ROOT

pytest.importorskip("torch")

from stagecut.solvers.learned import method

#: Prints a digest of all that is drawn, with the policy learning from it.
PROGRAM = """
import hashlib
from stagecut import PipelineJob, Latency, Limits, Throughput
from stagecut.api.solve import solve
from stagecut.instances.generate.graph_family import family_graph
from stagecut.solvers.learned import method

digest, offer = hashlib.sha256(), method._offer

def noted(of, drawn, search):
    for seen in (drawn.group, drawn.device, drawn.values, drawn.log_probability):
        digest.update(seen.tobytes())
    offer(of, drawn, search)

method._offer = noted
for problem in (Throughput(), Throughput("contiguous"), PipelineJob(4, "1f1b"), Latency()):
    graphs = (family_graph("branches", seed) for seed in range(20))
    trains = isinstance(problem, PipelineJob)
    workload = next(graph for graph in graphs if graph.backward.any() == trains)
    found = solve(
        workload, problem=problem, method="learned:fine-tune=1e6",
        limits=Limits(nodes=64, seed=3),
    )
    print(problem.name, found.objective, digest.hexdigest())
"""


def test_the_same_seed_draws_the_same_samples_in_another_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {"PYTHONPATH": str(ROOT / ".dev"), "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    monkeypatch.setattr(method, "_offer", method._offer)  # which the program replaces
    exec(PROGRAM, {})  # with other hashes, and one thread
    assert capsys.readouterr().out == done.stdout
    assert len(done.stdout.splitlines()) == 4
