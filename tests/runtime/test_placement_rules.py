"""The verifier on placement rules: every rule that a plan breaks is a line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance import chain

from stagecut import (
    Latency,
    PipelineJob,
    PlacementRules,
    Throughput,
    Workload,
    accelerators_and_cpus,
    evaluate,
)
from stagecut.instances import CallPlacement, PipelinePlacement, Placement, Solution

WORKLOAD = chain([1.0] * 4, ids=tuple("abcd"), names=("in", "mlp 1", "mlp 2", "out"))
SPLIT = Placement([0, 0, 1, 1])


def said(
    problem: Any, solution: Solution, workload: Workload = WORKLOAD, cpus: int = 0, **rules: Any
) -> list[str]:
    asked = replace(problem, placement_rules=PlacementRules(**rules))
    return list(evaluate(workload, accelerators_and_cpus(3, cpus), asked, solution).violations)


@pytest.mark.parametrize(
    ("rules", "line"),
    [
        ({"pins": (("a", 0), ("mlp 1", 0), ("out", 1), ("d", -2))}, None),
        ({"pins": (("mlp*", 0),)}, 'pin "mlp*=0": node c is in device 1 of 3'),
        ({"pins": (("d", -1),)}, 'pin "d=-1": node d is in device 1 of 3'),
        ({"together": (("a", "mlp 1"), ("c", "d"))}, None),
        ({"together": (("mlp*",),)}, 'together "mlp*": nodes b and c are not together'),
        ({"apart": (("a", "d"), ("mlp*",))}, None),
        ({"apart": (("[ab]",),)}, 'apart "[ab]": nodes a and b are not apart'),
        ({"apart": (("a", "[cd]"), ("c", "d"))}, 'apart "c d": nodes c and d are not apart'),
        ({"max_stages": 2}, None),
        ({"max_stages": 1}, "2 devices, 1 more than allowed"),
        ({"fixed": (("a", 0), ("c", 1))}, None),
        ({"fixed": (("c", 0),)}, 'fixed "c=0": node c is in device 1 of 3'),
    ],
)
def test_rules_of_devices(rules: dict[str, Any], line: str | None) -> None:
    assert said(Throughput(), SPLIT, **rules) == ([] if line is None else [line])


def test_nodes_of_a_colour_count_as_one_for_a_single_pattern() -> None:
    workload = replace(WORKLOAD, colours=np.array([0, 0, -1, -1]), colour_labels=("one",))
    assert said(Throughput(), SPLIT, workload, apart=(("[abc]",),)) == []
    assert said(Throughput(), SPLIT, workload, apart=(("a", "b"),)) != []


def test_a_pool_is_one_place() -> None:
    plan = CallPlacement(device=[0, 3, 3, 0], call=[0, -1, -1, 1])
    rules: dict[str, Any] = {"pins": (("b", 4), ("c", -1)), "together": (("b", "c"),)}
    assert said(Latency(2), plan, cpus=2, max_stages=2, **rules) == []
    assert said(Latency(2), plan, cpus=2, apart=(("b", "c"),)) != []


def test_numbers_are_stages_in_a_chain_and_devices_elsewhere() -> None:
    plan = PipelinePlacement([0, 0, 1, 1], devices=(2, 0))
    assert said(PipelineJob(2), plan, pins=(("a", 0), ("d", -1), ("c", 1))) == []
    assert said(PipelineJob(2), plan, pins=(("a", 2),)) == ['pin "a=2": node a is in stage 0 of 2']
    elsewhere = PipelineJob(2, split="noncontiguous")
    assert said(elsewhere, plan, pins=(("a", 2), ("a", -1), ("d", 0))) == []
    assert said(PipelineJob(2), plan, max_stages=1) == ["2 stages, 1 more than allowed"]
