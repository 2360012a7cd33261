"""Placement rules: what methods plan under them, and what they say where nothing keeps them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from conformance import chain

from stagecut import (
    Cluster,
    DeviceKind,
    InputError,
    Latency,
    Limits,
    PipelineJob,
    PlacementRules,
    Result,
    Throughput,
    Workload,
    accelerators_and_cpus,
    load,
    solve,
    verify,
)
from stagecut.formulations.rules.cases import only_rule_case, without_rules
from stagecut.formulations.task import pose
from stagecut.instances import Layers, is_stream

EXACT = Limits(seconds=60.0)


def letters(count: int = 6, **changes: object) -> Workload:
    """Return a chain of nodes a, b, …, each of which takes one second."""
    return chain([1.0] * count, ids=tuple("abcdefgh"[:count]), **changes)


def trained(count: int = 4) -> Workload:
    """Return a chain of forward nodes a, b, … and backward nodes A, B, …, of their colours."""
    ends = [(v, v + 1) for v in range(count - 1)]
    ends += [(v, v + count) for v in range(count)]
    ends += [(v + 1 + count, v + count) for v in range(count - 1)]
    return chain(
        [1.0] * 2 * count,
        ids=tuple("abcdefgh"[:count] + "ABCDEFGH"[:count]),
        edges=np.array(ends),
        backward=np.arange(2 * count) >= count,
        colours=np.tile(np.arange(count), 2),
        colour_labels=tuple(range(count)),
    )


def layered() -> Workload:
    """Return a chain of four layers a to d that can be configured in one way."""
    return letters(
        4,
        layers=Layers(
            node=np.arange(4),
            degree=np.ones(4, np.int64),
            label=("only",) * 4,
            recomputes=np.zeros(4, np.bool_),
            time=np.ones(4),
            weight_bytes=np.zeros(4),
            bytes_per_microbatch=np.ones(4),
            fixed_bytes=np.ones(4),
            edge_bytes=np.zeros(3),
            sync_bytes=({},) * 4,
            microbatches=4,
            bandwidth=1.0,
        ),
    )


def planned(workload: Workload, problem: Any, devices: int = 2, **rules: Any) -> Result:
    asked = replace(problem, placement_rules=PlacementRules(**rules))
    return solve(workload, accelerators_and_cpus(devices), asked, limits=EXACT)


CONTIGUOUS = Throughput(split="contiguous")


@pytest.mark.parametrize(
    ("workload", "problem", "rules", "why"),
    [
        (
            letters(), Throughput(), {"pins": (("a", 0), ("b", 1)), "together": (("a", "b"),)},
            'pin "a=0", pin "b=1" and together "a b" contradict each other',
        ),
        (
            letters(), Latency(), {"pins": (("a", 0), ("[ab]", 1))},
            'pin "a=0" and pin "[ab]=1" contradict each other',
        ),
        (
            letters(), CONTIGUOUS, {"pins": (("a", 0), ("c", 1), ("d", 0))},
            'a feeds c and c feeds d, so pin "a=0", pin "c=1", pin "d=0" cannot hold with a '
            "contiguous split",
        ),
        (
            letters(), Throughput(), {"apart": (("a", "b"),), "together": (("a", "f"), ("b", "f"))},
            'apart "a b", together "a f" and together "b f" contradict each other',
        ),
        (
            letters(), Throughput(), {"pins": (("a", 1), ("b", -1)), "apart": (("a", "b"),)},
            'pin "a=1" and pin "b=-1" and apart "a b" contradict each other',
        ),
        (
            letters(), Throughput(), {"apart": (("[abc]",),)},
            "placement rules: what is pinned or apart needs more than the 2 devices; leave out a "
            "rule, or add devices",
        ),
        (
            trained(), Throughput(), {"pins": (("a", 0), ("A", 1))},
            'pin "a=0", pin "A=1" and colour 0 contradict each other',
        ),
        (
            trained(), PipelineJob(2, "1f1b"), {"pins": (("a", 1), ("b", 0))},
            'a feeds b, so pin "a=1" and pin "b=0" cannot hold',
        ),
        (
            trained(), PipelineJob(2, "1f1b"),
            {"pins": (("a", 0), ("b", 0)), "apart": (("a", "b"),)},
            'pin "a=0", pin "b=0" and apart "a b" contradict each other',
        ),
        (
            trained(), PipelineJob(2, "1f1b"), {"pins": (("d", 7),)},
            'pin "d=7": there can be only 2 stages; take another, or fewer rules',
        ),
        (
            layered(), PipelineJob(schedule="stream"), {"pins": (("b", 0), ("a", 1))},
            'a feeds b, so pin "a=1" and pin "b=0" cannot hold',
        ),
        (
            layered(), PipelineJob(schedule="stream"),
            {"together": (("a", "b"),), "apart": (("b", "a"),)},
            'apart "b a" and together "a b" contradict each other',
        ),
    ],
)  # fmt: skip
def test_rules_that_contradict_each_other_are_named(
    workload: Workload, problem: Any, rules: dict[str, Any], why: str
) -> None:
    result = planned(workload, problem, **rules)
    assert result.status == "infeasible"
    assert result.reason == why


@pytest.mark.parametrize(
    "problem",
    [Throughput(), CONTIGUOUS, Latency(), PipelineJob(2, "1f1b"), PipelineJob(schedule="stream")],
)
def test_rules_that_name_nothing_are_refused(problem: Any) -> None:
    workload = layered() if is_stream(problem) else trained()
    for rule in ({"pins": (("x*", 0),)}, {"together": (("x",),)}, {"apart": (("a", "x"),)}):
        with pytest.raises(InputError, match=r"no node of a chain has an id or name that matches"):
            planned(workload, problem, **rule)
    with pytest.raises(InputError, match="node a matches two of its patterns"):
        planned(workload, problem, apart=(("a", "[ab]"),))
    with pytest.raises(InputError, match=r'matches "embeding"; did you mean embedding\?'):
        planned(load("gpt2-xl"), Throughput(), pins=(("embeding", 0),))


@pytest.mark.parametrize("problem", [Throughput(), Latency()])
def test_a_device_that_does_not_exist_is_refused(problem: Any) -> None:
    with pytest.raises(InputError, match=r'pin "a=2": there are devices 0 to 1'):
        planned(letters(), problem, pins=(("a", 2),))


def test_a_node_pinned_where_it_cannot_run_is_said() -> None:
    workload = letters(times={"accelerator": np.array([np.inf, 1, 1, 1, 1, 1]), "cpu": np.ones(6)})
    asked = Throughput(placement_rules=PlacementRules(pins=(("a", 0),)))
    result = solve(workload, accelerators_and_cpus(1, 1), asked)
    assert result.reason == 'pin "a=0": accelerator does not support node a; pin it elsewhere'


def test_pinned_devices_are_no_longer_alike() -> None:
    result = planned(letters(), CONTIGUOUS, 3, pins=(("c", 2), ("f", 0)))
    assert result.plan is not None
    assert result.status == "optimal"
    assert result.plan.placement.tolist() == [1, 1, 2, 2, 0, 0]


def test_numbers_from_the_end_are_of_the_plan_that_is_made() -> None:
    result = planned(trained(), PipelineJob(4, "1f1b"), 3, pins=(("d", -1), ("a", 0)), max_stages=2)
    assert result.plan is not None
    assert result.plan.solution.stage.tolist() == [0, 0, 1, 1] * 2  # type: ignore[union-attr]
    alone = planned(layered(), PipelineJob(schedule="stream"), 4, pins=(("d", -2), ("c", -2)))
    assert alone.reason.endswith("cannot hold") or alone.plan is None


def test_chunks_of_one_device_are_not_apart() -> None:
    """Of stages 0 to 3, on devices 0, 1, 0, 1, the first and the third share one."""
    problem = PipelineJob(4, "interleaved")
    four = planned(trained(4), problem, 2, apart=(("a", "c"),))
    assert four.reason.startswith("no contiguous split that keeps the placement rules fits")
    six = planned(trained(6), problem, 2, apart=(("a", "c"),))
    assert six.plan is not None
    assert six.plan.solution.devices == (0, 1, 0, 1)  # type: ignore[union-attr]
    assert six.plan.placement[0] != six.plan.placement[2]


def test_what_is_apart_under_a_given_schedule_follows_its_rows() -> None:
    """In a V of four stages on two devices, stages 0 and 3 share one, and 0 and 2 do not."""
    rows = ("0F0,3F0,3B0,0B0", "1F0,2F0,2B0,1B0")
    problem = PipelineJob(1, "given", actions=rows)
    for other, pin in (("c", 2), ("d", 3)):
        rules = {"pins": (("a", 0), (other, pin)), "apart": (("a", other),)}
        result = planned(trained(4), problem, 2, **rules)
        if pin == 2:
            assert result.plan is not None
            assert result.plan.placement.tolist() == [0, 1, 1, 0] * 2
        else:
            why = 'pin "a=0", pin "d=3" and apart "a d" contradict each other'
            assert result.reason == why


@pytest.mark.parametrize("problem", [Throughput(), CONTIGUOUS, Latency()])
def test_few_devices(problem: Any) -> None:
    result = planned(letters(), problem, 4, max_stages=2)
    assert result.plan is not None
    assert len(set(result.plan.placement.tolist())) <= 2
    assert result.status == "optimal"


def test_one_group_apart_from_all_others_is_one_case_where_devices_are_alike() -> None:
    rules = PlacementRules(apart=(("a", "[c-f]"),))
    task = pose(letters(), accelerators_and_cpus(8), Throughput(placement_rules=rules))
    (case,) = without_rules(task).cases
    assert [kind.count for kind in case.task.cluster.kinds] == [1, 7]
    assert not case.task.problem.placement_rules


def test_devices_that_differ_are_cases_of_their_own() -> None:
    kinds = (DeviceKind("fast", 2, times="accelerator"), DeviceKind("slow", 2, times="accelerator"))
    rules = PlacementRules(apart=(("a", "b"),))
    task = pose(letters(), Cluster(kinds), Throughput(placement_rules=rules))
    assert len(list(without_rules(task).cases)) == 2
    with pytest.raises(InputError, match="they are several programs"):
        only_rule_case(task)
    few = replace(rules, max_stages=2)
    task = pose(letters(), Cluster(kinds), Throughput(placement_rules=few))
    assert len(list(islice(without_rules(task).cases, 9))) == 4  # a fast, or slow; the other too


@pytest.mark.parametrize(
    ("workload", "problem", "methods"),
    [
        (trained(), PipelineJob(2, "1f1b"), ("megatron", "vllm", "torchtitan", "block-dp")),
        (layered(), PipelineJob(schedule="stream"), ("equal-stages", "data-parallel", "pipedream")),
    ],
)
def test_methods_with_rules_of_their_own_refuse_in_one_line(
    workload: Workload, problem: Any, methods: tuple[str, ...]
) -> None:
    asked = replace(problem, placement_rules=PlacementRules(pins=(("a", 0),)))
    for method in methods:
        with pytest.raises(InputError, match=f"^method: {method} .*placement rules.*; use auto"):
            solve(workload, accelerators_and_cpus(2), asked, method=method)


def test_a_pin_to_a_device_is_kept_by_an_iteration_whose_modules_have_names() -> None:
    """A pinned node has no time on other devices, for which block-dp has no split."""
    named = replace(trained(), names=tuple(f"layers.{v % 4}.mlp" for v in range(8)))
    rules = PlacementRules(pins=(("c", 1),))
    asked = PipelineJob(2, "1f1b", split="noncontiguous", placement_rules=rules)
    plan = solve(named, accelerators_and_cpus(2), asked, limits=Limits(nodes=50)).plan
    assert plan is not None
    verify(named, plan)


def test_a_start_that_keeps_the_rules_is_used_and_another_is_not() -> None:
    cluster = accelerators_and_cpus(2)
    ruled = Throughput(placement_rules=PlacementRules(pins=(("a", 1),)))
    kept = solve(letters(), cluster, ruled, method="greedy").plan
    assert kept is not None
    again = solve(letters(), cluster, ruled, method="greedy", start=kept)
    assert not any("breaks a rule" in note for note in again.notes)
    other = replace(ruled, placement_rules=PlacementRules(pins=(("a", 0),)))
    refused = solve(letters(), cluster, other, method="greedy", start=kept)
    assert "the start breaks a rule of this problem and was not used" in refused.notes
