"""Plans in pieces against the best chain of stages: what `explain` says of them, and bounds."""

from __future__ import annotations

import numpy as np
import pytest
from brute_iteration import least_makespan

from stagecut import (
    PipelineJob,
    Workload,
    accelerators_and_cpus,
    evaluate,
    explain,
    solve,
)
from stagecut.instances import PipelinePlacement


def layers(times: list[float]) -> Workload:
    """A chain of layers that are trained, each with its backward node, without transfers."""
    n, own = len(times), np.arange(len(times))
    return Workload(
        name="layers",
        ids=tuple(range(2 * n)),
        edges=np.stack((np.arange(2 * n - 1), np.arange(1, 2 * n)), axis=1),
        times={"accelerator": np.array(times + times[::-1])},
        memory_bytes=np.ones(2 * n),
        transfer=np.zeros(2 * n),
        backward=np.arange(2 * n) >= n,
        colours=np.concatenate((own, own[::-1])),
    )


def test_explain_says_what_placements_in_pieces_gain() -> None:
    workload = layers([3.0, 4.0, 3.0, 2.0])
    cluster, free = accelerators_and_cpus(2), PipelineJob(16, split="noncontiguous")
    plans = [solve(workload, cluster, one, workers=1).plan for one in (PipelineJob(16), free)]
    chain, pieces = plans
    assert chain is not None
    assert pieces is not None
    changes = {r.change: r for r in explain(workload, chain, seconds=5).remedies}
    said = changes["split noncontiguous"]
    assert said.objective is not None
    assert said.bound <= least_makespan(workload, cluster, free) <= said.objective + 1e-9
    assert said.objective < chain.objective
    others = explain(workload, pieces, seconds=0.1).remedies
    assert "split noncontiguous" not in {other.change for other in others}


@pytest.mark.parametrize(("schedule", "share"), [("1f1b", 2), ("gpipe", 2), ("zb-h1", 1)])
def test_fill_and_drain_vanish_with_finer_pieces(schedule: str, share: float) -> None:
    """So no bound of divided work on plans in pieces is above M times the work over the devices."""
    problem = PipelineJob(8, schedule, split="noncontiguous")  # type: ignore[arg-type]
    for n in (2, 4, 8, 16):
        workload = layers([1 / n] * n)
        in_turn = PipelinePlacement(workload.colours % 2, (0, 1))
        report = evaluate(workload, accelerators_and_cpus(2), problem, in_turn)
        assert report.objective == pytest.approx(8 + share / n)
