"""Layouts that contradict themselves, the model or the cluster are refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stagecut import InputError
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.layout import (
    RECIPES,
    Layout,
    check_heads,
    check_layout,
    without_counts,
)
from stagecut.instances.costs.models import shipped_model

GOOD = Layout(tensor=4, pipeline=4, data=4, microbatch=1, global_batch=512, sequence=8192)
MOE = replace(GOOD, tensor=1, pipeline=2, data=32, expert=32, global_batch=1024)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama3-70b", GOOD),
        ("llama3-70b", replace(GOOD, tensor=8, data=2, context=1)),
        ("llama3-70b", replace(GOOD, stage_layers=(19, 21, 21, 19))),
        ("llama3-70b", replace(GOOD, chunks=2, schedule="interleaved")),
        ("qwen3-30b-a3b", MOE),
        ("qwen3-30b-a3b", replace(MOE, pipeline=1, data=64, expert=64)),
        ("t5-11b", replace(GOOD, tensor=8, pipeline=2)),
    ],
)
def test_what_fits_is_accepted(name: str, layout: Layout) -> None:
    check_layout(shipped_model(name), layout, training_cluster("h100:8x8"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data": 2}, "= 32 devices, and the cluster has 64; change a degree"),
        ({"tensor": 0}, "tensor: 0; it must be a whole number"),
        ({"microbatch": 1.5}, "microbatch: 1.5; it must be a whole number"),
        ({"tensor": 3, "data": 5}, "= 60 devices"),
        ({"tensor": 32, "pipeline": 2, "data": 1}, None),
        ({"zero": 4}, "zero: 4; it must be 0, 1, 2 or 3"),
        ({"shard_group": 3, "zero": 1}, "shard_group: 3 does not divide the 4 ranks"),
        ({"expert": 2}, "llama3-70b has no experts; take 1"),
        ({"stage_layers": (20, 20, 20)}, "3 counts for pipeline 4 x chunks 1 = 4 stages"),
        ({"stage_layers": (20, 20, 20, 21)}, "add up to 81, and llama3-70b has 80 layers"),
        ({"chunks": 2}, "chunks: 2 with schedule 1f1b; take interleaved"),
        ({"chunks": 32, "schedule": "interleaved"}, "= 128 stages, and llama3-70b has 80 layers"),
        ({"global_batch": 510}, "510 is not divided by microbatch 1 x data 4 = 4"),
        ({"global_batch": 24, "chunks": 2, "schedule": "interleaved"}, "a multiple of the 4"),
        ({"context": 16384, "pipeline": 1, "tensor": 1, "data": 1}, "16,384 devices, and"),
        ({"recipe": RECIPES["megatron-nvfp4"]}, "computes in nvfp4, which h100-sxm does not"),
        (
            {"recipe": RECIPES["megatron-nvfp4"]},
            "take (megatron-[bf][^ ]+( or )?){4}$",
        ),
        ({"offload_optimizer": 2.0}, "offload_optimizer: 2; it must be from 0 to 1"),
        ({"order": ("tensor",)}, 'order: "tensor"; name each of tensor, context'),
        ({"shard_group": -1, "zero": 1}, "shard_group: -1; it must be a whole number"),
        ({"recompute_layers": -1}, "recompute_layers: -1; it must be a whole number"),
    ],
)
def test_a_contradiction_is_refused_with_the_remedy(
    changed: dict[str, Any], said: str | None
) -> None:
    model, cluster = shipped_model("llama3-70b"), training_cluster("h100:8x8")
    layout = replace(GOOD, **changed)
    if said is None:
        check_layout(model, layout, cluster)
        return
    with pytest.raises(InputError, match=said) as caught:
        check_layout(model, layout, cluster)
    assert "\n" not in str(caught.value)


def test_heads_decide_which_tensor_and_context_degrees_there_are() -> None:
    cluster = training_cluster("h100:8x5")
    layout = Layout(tensor=5, data=8, global_batch=8)
    with pytest.raises(
        InputError,
        match="tensor: 5 does not divide 64 heads of llama3-70b; take",
    ):
        check_layout(shipped_model("llama3-70b"), layout, cluster)
    layout = Layout(tensor=8, context=8, context_kind="all-to-all", data=1, global_batch=8)
    check_layout(shipped_model("llama3-70b"), layout, training_cluster("h100:8x8"))


def test_the_degrees_that_a_message_lists_are_allowed() -> None:
    model = shipped_model("qwen2.5-14b")  # 40 heads, 8 of keys and values
    for refused in (3, 5, 10, 16):
        with pytest.raises(InputError, match=r"take one of 1, 2, 4, 8$"):
            check_heads(model, Layout(tensor=refused))
    for allowed in (1, 2, 4, 8):
        check_heads(model, Layout(tensor=allowed))


def test_experts_decide_which_expert_degrees_there_are() -> None:
    cluster = training_cluster("h100:8x8")
    model = shipped_model("qwen3-30b-a3b")
    with pytest.raises(InputError, match="expert: 48 does not divide 128 experts"):
        check_layout(model, replace(MOE, expert=48), cluster)
    with pytest.raises(InputError, match="does not divide the 32 devices of a pipeline rank"):
        check_layout(model, replace(MOE, expert=64), cluster)


def test_counts_of_recomputed_layers_are_of_encoder_and_decoder() -> None:
    model = shipped_model("t5-large")  # 24 layers in each
    some = Layout(pipeline=2, recompute=frozenset({"full"}), recompute_layers=12)
    assert without_counts(model, some).recompute_layers == 12
    assert without_counts(model, replace(some, recompute_layers=24)).recompute_layers is None
