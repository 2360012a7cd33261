"""After a chain of stages is planned, the notes say whether a plan in pieces is faster."""

from __future__ import annotations

import numpy as np
import pytest
from brute_iteration import least_makespan

from stagecut import Limits, PipelineJob, Workload, accelerators_and_cpus, evaluate
from stagecut.api import solve as front
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


def said(workload: Workload, problem: PipelineJob) -> tuple[list[float], float]:
    """What the notes promise in percent, and the makespan of the chain."""
    result = front.solve(workload, accelerators_and_cpus(2), problem, limits=Limits(), workers=1)
    notes = [note for note in result.notes if note.startswith("in pieces")]
    assert all(note.endswith("% (split noncontiguous)") for note in notes)
    assert result.objective is not None
    return [float(note.split("−")[1].split()[0]) for note in notes], result.objective


def test_pieces_are_named_where_they_are_faster_and_only_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is promised of random layers, some plan in pieces keeps; often something is."""
    monkeypatch.setattr(front, "PIECES_SHARE", 1e4)
    rng, promised = np.random.default_rng(0), 0
    for _ in range(6):
        workload = layers(rng.integers(1, 9, 4).astype(float).tolist())
        notes, chain = said(workload, PipelineJob(16))
        free = PipelineJob(16, split="noncontiguous")
        best = least_makespan(workload, accelerators_and_cpus(2), free)
        promised += len(notes)
        assert all(percent <= 100 * (1 - best / chain) + 0.05 for percent in notes)
        assert not notes or best < chain
    assert 1 < promised < 6


def test_nothing_is_said_of_other_splits_or_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = layers([3.0, 4.0, 3.0, 2.0])
    monkeypatch.setattr(front, "PIECES_SHARE", 1e4)
    assert said(workload, PipelineJob(16))[0]
    assert not said(workload, PipelineJob(16, split="noncontiguous"))[0]
    monkeypatch.setattr(front, "PIECES_SHARE", 1e-9)
    assert not said(workload, PipelineJob(16))[0]


@pytest.mark.parametrize(("schedule", "share"), [("1f1b", 2), ("gpipe", 2), ("zb-h1", 1)])
def test_fill_and_drain_vanish_with_finer_pieces(schedule: str, share: float) -> None:
    """So no bound of divided work on plans in pieces is above M times the work over the devices."""
    problem = PipelineJob(8, schedule, split="noncontiguous")  # type: ignore[arg-type]
    for n in (2, 4, 8, 16):
        workload = layers([1 / n] * n)
        in_turn = PipelinePlacement(workload.colours % 2, (0, 1))
        report = evaluate(workload, accelerators_and_cpus(2), problem, in_turn)
        assert report.objective == pytest.approx(8 + share / n)
