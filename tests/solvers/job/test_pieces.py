"""Plans that need not be chains, and what is not to be claimed of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sweep import case_of

from stagecut import Cluster, DeviceKind, Limits, PipelineJob, Workload, load, solve
from stagecut.formulations.job.line import line
from stagecut.formulations.task import pose
from stagecut.instances import accelerators_and_cpus


def there_and_back(activations: float) -> Workload:
    """Three nodes in a row; the one in the middle runs on the other kind of device."""
    alone = np.array([1.0, math.inf, 1.0])
    return Workload(
        name="there and back",
        ids=(0, 1, 2),
        edges=np.array([[0, 1], [1, 2]]),
        times={"outer": alone, "inner": np.array([math.inf, 1.0, math.inf])},
        memory_bytes=np.array([activations, 0.0, activations]),
        transfer=np.zeros(3),
        extra={"activation_bytes": np.array([activations, 0.0, activations])},
    )


@pytest.mark.parametrize("split", ["noncontiguous", "per-device"])
def test_pieces_of_a_device_need_not_hold_their_activations_at_once(split: str) -> None:
    """Inference frees those of the first piece before the second begins: 6 bytes, and not 12."""
    cluster = Cluster((DeviceKind("outer", 1, memory_bytes=8.0), DeviceKind("inner", 1)))
    found = solve(
        there_and_back(6.0), cluster, PipelineJob(1, split=split), limits=Limits(nodes=50)
    )
    if split == "per-device":  # a path leaves the device and comes back
        assert found.plan is None
        return
    assert found.status != "infeasible"
    assert found.objective == 3.0
    assert found.bound <= 3.0


@pytest.mark.parametrize(
    ("variant", "seed"),
    [
        ("iteration noncontiguous", 1095),
        ("iteration noncontiguous", 1290),
        ("iteration per-device", 1144),
    ],
)
def test_a_plan_is_found_where_memory_is_short(variant: str, seed: int) -> None:
    """No chain fits, and none of the placements that the search for the max-load meets."""
    case = case_of(variant, seed)
    found = solve(case.workload, case.cluster, case.problem, limits=Limits(nodes=500))
    optimum = case.optimum()
    assert optimum is not None
    assert found.plan is not None
    assert found.bound <= optimum <= found.objective


def test_an_order_of_units_that_are_alike_only_where_nothing_is_left_out() -> None:
    workload, cluster = load("mixtral-8x7b-training"), accelerators_and_cpus(8)
    exact = line(pose(workload, cluster, PipelineJob(8)))
    relaxed = line(pose(workload, cluster, PipelineJob(8, overlap=True)))
    assert exact.exact
    assert not relaxed.exact
    assert len(exact.graph.edges) > len(relaxed.graph.edges)


def test_more_chunks_than_units_are_infeasible_with_the_reason() -> None:
    forward = np.array([False, True])
    workload = Workload(
        name="one layer",
        ids=(0, 1),
        edges=np.array([[0, 1]]),
        times={"accelerator": np.ones(2)},
        memory_bytes=np.zeros(2),
        transfer=np.zeros(2),
        backward=forward,
        colours=np.zeros(2, np.int64),
    )
    found = solve(workload, accelerators_and_cpus(2), PipelineJob(8, "interleaved"))
    assert found.status == "infeasible"
    assert "a device takes 2 stages, and there can be 1 at most" in found.reason
