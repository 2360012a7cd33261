"""Splits of frameworks: the counts that their documentation gives, and why there are none."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from conformance import chain

from stagecut import (
    InputError,
    PipelineJob,
    PlacementRules,
    Result,
    Workload,
    accelerators_and_cpus,
    load,
    solve,
    verify,
)
from stagecut.formulations.job.modules import Modules
from stagecut.instances import PipelinePlacement
from stagecut.solvers.job.iteration.frameworks import BY_NAME, Refused, balanced
from stagecut.solvers.job.methods import RULES


def model(blocks: int, *, inputs: int = 1, outputs: int = 1, heavy: float = 1.0) -> Modules:
    """Blocks of size 1 with an input and an output part of `heavy`."""
    size = np.array([heavy] * inputs + [1.0] * blocks + [heavy] * outputs)
    names = [f"in {i}" for i in range(inputs)] + [f"layers.{i}" for i in range(blocks)]
    names += [f"out {i}" for i in range(outputs)]
    return Modules(tuple(names), inputs, outputs, np.arange(len(size)), size, size, size)


def counts(rule: str, found: Modules, stages: int, option: str = "") -> list[list[int]]:
    """The numbers of modules of the stages, one list for each split."""
    return list(BY_NAME[rule](found, stages, option))


@pytest.mark.parametrize(
    ("rule", "blocks", "stages", "sizes"),
    [
        ("vllm", 61, 8, [8, 7, 8, 8, 8, 8, 8, 8]),  # 7 7 8 8 8 8 8 7 blocks
        ("vllm", 94, 4, [24, 24, 24, 24]),  # 23 24 24 23 blocks
        ("vllm", 7, 4, [3, 2, 2, 2]),  # 2 2 2 1 blocks
        ("torchtitan", 32, 8, [5, 5, 4, 4, 4, 4, 4, 4]),
        ("torchtitan", 6, 4, [2, 2, 2, 2]),
        ("deepspeed-uniform", 32, 8, [5, 5, 4, 4, 4, 4, 4, 4]),
        ("deepspeed-type", 32, 8, [5, 4, 4, 4, 4, 4, 4, 5]),
        ("deepspeed-parameters", 6, 4, [2, 2, 2, 2]),
        ("block-dp", 6, 4, [2, 2, 2, 2]),
    ],
)
def test_documented_counts(rule: str, blocks: int, stages: int, sizes: list[int]) -> None:
    assert counts(rule, model(blocks), stages) == [sizes]


def test_megatron_counts_embedding_and_head_or_not() -> None:
    assert counts("megatron", model(8), 4) == [[3, 2, 2, 3]]
    assert counts("megatron", model(6), 4) == [[2, 2, 2, 2]]  # both counted
    assert counts("megatron", model(7), 4) == [[3, 2, 2, 2], [2, 2, 2, 3]]  # either counted
    with pytest.raises(Refused, match="9 blocks cannot be divided evenly into 4"):
        counts("megatron", model(9), 4)


def test_vllm_and_megatron_leave_several_modules_at_the_ends() -> None:
    assert counts("vllm", model(4, inputs=2, outputs=3), 2) == [[4, 5]]
    assert counts("megatron", model(4, inputs=0, outputs=0), 2) == [[2, 2]]


def test_parameters_and_compute_see_what_is_heavy() -> None:
    for rule in ("deepspeed-parameters", "block-dp"):
        assert counts(rule, model(8, heavy=3.0), 3) == [[3, 5, 2]]
    assert counts("deepspeed-type", model(8), 3, "LAYERS.[0-3]$") == [[3, 1, 6]]


def test_a_type_that_matches_nothing_is_refused() -> None:
    with pytest.raises(Refused, match="no module's name matches 'conv'"):
        counts("deepspeed-type", model(8), 2, "conv")


def test_accelerate_fills_one_device_after_the_other() -> None:
    # an equal part is 4.5, and 1.25 is added; the first keeps 1 for what comes
    assert counts("accelerate-balanced", model(16), 4) == [[4, 5, 5, 4]]
    # the embedding does not fit on the first device, and all goes on with the next
    assert counts("accelerate-balanced", model(4, heavy=20.0), 2) == [[6]]


def test_balanced_is_the_most_even_of_the_least_maxima() -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        n, parts = int(rng.integers(1, 9)), 0
        parts = int(rng.integers(1, n + 1))
        weight = rng.integers(0, 5, n).astype(float)
        splits = [np.diff([0, *cut, n]) for cut in itertools.combinations(range(1, n), parts - 1)]
        sums = [[float(p.sum()) for p in np.split(weight, np.cumsum(s)[:-1])] for s in splits]
        best = min((max(s), sum(x * x for x in s)) for s in sums)
        found = balanced(weight, parts)
        own = [float(p.sum()) for p in np.split(weight, np.cumsum(found)[:-1])]
        assert (len(found), sum(found), min(found) > 0) == (parts, n, True)
        assert (max(own), sum(x * x for x in own)) == pytest.approx(best)


def named(n: int, **changes: object) -> Workload:
    """Blocks in a row."""
    return chain([1.0] * n, names=tuple(f"layers.{v}.mlp" for v in range(n)), **changes)


def split(workload: Workload, rule: str, devices: int = 4, **problem: object) -> Result:
    """What a rule says of a workload."""
    asked = PipelineJob(**{"microbatches": 4, **problem})  # type: ignore[arg-type]
    return solve(workload, accelerators_and_cpus(devices, 1), asked, method=rule)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_plan_on_a_shipped_model(rule: str) -> None:
    workload = load("llama3-8b-training")
    result = split(workload, rule)
    assert result.plan is not None, result.notes
    verify(workload, result.plan)
    solution = result.plan.solution
    assert isinstance(solution, PipelinePlacement)
    assert solution.devices == (0, 1, 2, 3)
    assert result.plan.method == rule


@pytest.mark.parametrize(
    ("rule", "workload", "problem", "said"),
    [
        ("vllm", chain([1.0] * 4), {}, "name no modules such as"),
        ("vllm", named(3), {}, "3 modules are too few for 4 stages"),
        ("megatron", named(5), {}, "5 blocks cannot be divided evenly"),
        ("vllm", named(8, colours=np.array([0, *[-1] * 6, 0])), {}, "colours or edges join"),
    ],
)
def test_why_a_rule_has_no_plan(
    rule: str, workload: Workload, problem: dict[str, object], said: str
) -> None:
    result = split(workload, rule, **problem)
    assert result.status == "no solution"
    assert said in result.notes[-1]
    assert result.notes[-1].startswith(f"{rule}: ")


def test_a_sequence_has_numbered_blocks() -> None:
    operators = {"granularity": "operators"}
    traced = chain(
        [1.0] * 8, names=tuple(f"{v}/linear_{v}" for v in range(8)), provenance=operators
    )
    for rule in RULES:
        result = split(traced, rule)
        assert result.plan is not None, result.notes
        same = split(named(8), rule).plan
        assert same is not None
        assert list(result.plan.placement) == list(same.placement)
    for names, again in ((tuple("abcdefgh"), True), (tuple(f"{v}/add" for v in "abcdefgh"), False)):
        unnumbered = chain([1.0] * 8, names=names, provenance=operators)
        assert ("profile the model again" in split(unnumbered, "vllm").notes[-1]) == again


def test_what_does_not_fit_into_memory_is_said() -> None:
    cluster = accelerators_and_cpus(2, memory_bytes=3.0)
    result = solve(named(8), cluster, PipelineJob(4), method="vllm")
    assert result.plan is None
    assert "memory" in f"{result.notes} {result.reason}"
    few = replace(named(4), memory_bytes=np.array([1.0, 1.0, 2.0, 2.0]))
    result = solve(few, cluster, PipelineJob(4), method="vllm")  # 1 and 3 would fit
    assert result.status == "no solution"
    assert result.notes[-1] == "vllm: its plan does not fit into memory under this schedule"


def test_what_no_accelerator_supports_is_said() -> None:
    times = {"accelerator": np.array([1.0, 1.0, np.inf, 1.0]), "cpu": np.ones(4)}
    result = split(named(4, times=times), "vllm", 2)
    assert result.notes[-1] == "vllm: no accelerator supports node node 2"


def test_chunks_go_round_the_devices() -> None:
    workload = load("llama3-8b-training")
    result = split(workload, "megatron", schedule="interleaved", chunks=2)
    assert result.plan is not None
    assert isinstance(result.plan.solution, PipelinePlacement)
    assert result.plan.solution.devices == (0, 1, 2, 3, 0, 1, 2, 3)
    refused = split(workload, "megatron", schedule="interleaved", microbatches=6)
    assert "needs a multiple of 4 microbatches" in refused.notes[-1]
    fewer = split(
        workload, "vllm", schedule="interleaved", placement_rules=PlacementRules(max_stages=5)
    )
    assert fewer.plan is not None
    assert isinstance(fewer.plan.solution, PipelinePlacement)
    assert fewer.plan.solution.devices == (0, 1, 0, 1)


def test_a_node_that_is_needed_earlier_moves_to_its_first_user() -> None:
    names = ("a.x", "b.x", "a.y", "b.y", "layers.0.mlp")
    result = split(chain([1.0] * 5, names=names), "deepspeed-uniform", 3)
    assert result.plan is not None
    assert isinstance(result.plan.solution, PipelinePlacement)
    assert result.plan.solution.stage.tolist() == [0, 0, 0, 1, 2]
    result = split(chain([1.0] * 4, names=(*names[:3], names[4])), "deepspeed-uniform", 3)
    assert result.notes[-1] == "deepspeed-uniform: stage 1 of 3 would have no nodes"


def test_the_operators_of_a_module_belong_together() -> None:
    names = ("embed/embedding", "layers.0.norm_1/norm", "layers.0.mlp/linear_7", "layers.0/add_2",
             "layers.1.mlp/linear_8", "layers.1/add_3", "head/linear_9", "model/loss")  # fmt: skip
    result = split(chain([1.0] * 8, names=names), "vllm", 2)
    assert result.plan is not None
    assert isinstance(result.plan.solution, PipelinePlacement)
    assert result.plan.solution.stage.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_regular_expression_is_an_option() -> None:
    workload, cluster = named(8), accelerators_and_cpus(2)
    for pattern, first in (("", 4), ("layers.[0-1]", 1)):
        method = f"deepspeed-type:{pattern}" if pattern else "deepspeed-type"
        result = solve(workload, cluster, PipelineJob(4), method=method)
        assert result.plan is not None
        assert isinstance(result.plan.solution, PipelinePlacement)
        assert int((result.plan.solution.stage == 0).sum()) == first
        again = solve(workload, cluster, PipelineJob(4), method=f"deepspeed-type:type={pattern}")
        assert again.plan is not None
        assert again.method == "deepspeed-type"
        assert again.plan.objective == result.plan.objective
    for method, message in (
        ("vllm:x", "vllm takes nothing behind a colon"),
        ("deepspeed-type:(", "is no regular expression for deepspeed-type"),
    ):
        with pytest.raises(InputError, match=message):
            solve(workload, cluster, PipelineJob(4), method=method)
