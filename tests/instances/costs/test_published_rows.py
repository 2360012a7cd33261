"""Rows of published runs are read whatever they leave out, or refused with the reason."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from project import ROOT

from stagecut.instances.costs.layout import Dispatcher, JobSchedule, Recompute, Software


def _load() -> Any:
    name = "published_rows"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # which dataclasses look their annotations up in
    spec.loader.exec_module(module)
    return module


rows = _load()

LLAMA = {
    "id": "1", "sweep": "someone:70B", "model": "Llama-3.1-70B", "gpu": "H100", "gpus": "64",
    "tp": "4.0", "pp": "4", "dp": "4", "global_batch": "512", "micro_batch": "1", "seq": "8192",
    "precision": "BF16", "iter_s": "12.5",
}  # fmt: skip
GPT = {
    "id": "2", "sweep": "someone:x", "source": "NVIDIA/Megatron-LM:README.md",
    "model": "GPT-18.4B", "layers": "40", "hidden": "6144",
    "heads": "48", "ffn": "24576", "vocab": "51200", "gpu": "A100-80GB", "gpus": "256", "tp": "8",
    "pp": "1", "dp": "32", "global_batch": "1024", "micro_batch": "8", "seq": "2048",
    "precision": "FP16", "measured": "9603.6", "unit": "ms/iteration", "recompute": "full",
    "attention": "unfused+fused softmax", "sp": "0", "schedule": "none",
}  # fmt: skip


def case(row: dict[str, str], **changed: str) -> Any:
    made = rows.case_of({key: value for key, value in (row | changed).items() if value})
    assert isinstance(made, rows.Case), made
    return made


def test_a_row_that_states_everything_assumes_nothing() -> None:
    made = case(
        GPT, zero="0", overlap="off", schedule="1f1b", notes="800 Gb/s per node", params_b="18.4"
    )
    assert made.assumed == ()
    assert made.seconds == pytest.approx(9.6036)
    assert made.layout.recompute == {Recompute.FULL}
    assert (made.layout.tensor, made.layout.data, made.layout.microbatches) == (8, 32, 4)
    assert not made.layout.fused_attention
    assert not made.layout.sequence_parallel
    assert made.description.parameters == pytest.approx(18.4e9, rel=0.01)
    assert made.cluster.network.bandwidth == pytest.approx(12.5e9)
    assert made.layout.software is Software.MEGATRON


def test_a_model_that_is_shipped_is_taken_by_its_name_if_shapes_agree() -> None:
    assert case(LLAMA).description.name == "llama3-70b"
    assert case(LLAMA, layers="80", hidden="8192.0").description.name == "llama3-70b"
    other = case(LLAMA, layers="40", hidden="8192", heads="64", kv_heads="8", ffn="28672")
    assert len(other.description.blocks) == 40
    block = other.description.blocks[0]
    assert block.feed_forward is not None
    assert block.feed_forward.gated


@pytest.mark.parametrize(
    ("changed", "gated", "tied"),
    [
        ({}, False, True),
        ({"params_b": "18.4"}, False, True),
        ({"params_b": "18.75"}, False, False),  # embedding and head apart
        ({"ffn": "16384"}, True, False),
        ({"kv_heads": "8"}, True, False),
        ({"params_b": "24.5"}, True, True),
    ],
)
def test_what_a_shape_leaves_open_is_told_by_the_published_count(
    changed: dict[str, str], gated: bool, tied: bool
) -> None:
    model = case(GPT, **changed).description
    layer = model.blocks[0].feed_forward
    assert layer is not None
    assert (layer.gated, model.tied) == (gated, tied)


@pytest.mark.parametrize(
    ("changed", "seconds"),
    [
        ({"iter_s": "", "tokens_per_s_per_gpu": "1000"}, 512 * 8192 / 64000),
        ({"iter_s": "", "measured": "1000", "unit": "tokens/s/GPU"}, 512 * 8192 / 64000),
        ({"iter_s": "", "measured": "64000", "unit": "tokens/s"}, 512 * 8192 / 64000),
        ({"iter_s": "", "measured": "2", "unit": "samples/s/GPU"}, 4.0),
        ({"iter_s": "", "measured": "128", "unit": "samples/s"}, 4.0),
        ({"iter_s": "", "measured": "250", "unit": "ms/iteration"}, 0.25),
        ({"iter_s": "", "measured": "3", "unit": "s/iteration"}, 3.0),
    ],
)
def test_whatever_was_measured_becomes_seconds(changed: dict[str, str], seconds: float) -> None:
    assert case(LLAMA, **changed).seconds == pytest.approx(seconds)


def test_memory_alone_and_out_of_memory_are_cases_too() -> None:
    made = case(LLAMA, iter_s="", peak_mem_gb="70")
    assert (made.seconds, made.peak_bytes) == (None, 70 * 2**30)
    assert case(LLAMA, iter_s="", status="oom").oom


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("none", set()),
        ("full", {Recompute.FULL}),
        ("selective", {Recompute.CORE_ATTENTION}),
        ("selective (attention) + sequence parallel", {Recompute.CORE_ATTENTION}),
        ("selective (op), default", {Recompute.OPERATORS}),
        ("selective (layernorm, moe_act)", {Recompute.LAYERNORM, Recompute.MOE_ACTIVATION}),
    ],
)
def test_recomputation_is_read_by_module(text: str, modules: set[Recompute]) -> None:
    assert case(LLAMA, recompute=text).layout.recompute == modules


@pytest.mark.parametrize(
    ("precision", "recipe"),
    [
        ("BF16", "zero-bf16"), ("bf16", "zero-bf16"), ("FP16", "zero-fp16"),
        ("FP16/BF16", "zero-bf16"), ("FP8 (current scaling)", "megatron-fp8"),
        ("FP8-CS", "megatron-fp8"), ("FP8-MX", "megatron-mxfp8"), ("MXFP8", "megatron-mxfp8"),
        ("NVFP4", "megatron-nvfp4"), ("TF32", "fp32"),
    ],
)  # fmt: skip
def test_precisions_are_read_in_any_spelling(precision: str, recipe: str) -> None:
    assert case(LLAMA, precision=precision, gpu="B200").layout.recipe.name == recipe


def test_megatron_adds_gradients_up_in_32_bits() -> None:
    for source, recipe in (
        ("NVIDIA/Megatron-LM", "megatron-bf16"),
        ("DeepSpeed", "deepspeed-bf16"),
    ):
        assert case(LLAMA, precision="BF16", source=source).layout.recipe.name == recipe


@pytest.mark.parametrize(
    ("text", "fused"),
    [
        ("flash (TE)", True), ("fused (TE)", True), ("torch sdpa", True),
        ("flash_attention2", True), ("unfused+fused softmax", False), ("pytorch", False),
        ("Megatron kernel", False), ("no flash", False), ("", True),
    ],
)  # fmt: skip
def test_attention_is_fused_or_scores_lie_in_memory(text: str, fused: bool) -> None:
    assert case(LLAMA, attention=text).layout.fused_attention is fused


def test_norms_are_fused_where_a_source_names_their_kernel() -> None:
    named = [{**LLAMA, "id": "1", "attention": "flash2 + RMS_norm kernel"}, {**LLAMA, "id": "2"}]
    found, _ = rows.cases(named)
    assert [one.layout.fused_norms for one in found] == [True, False]
    silent, _ = rows.cases(named[1:])
    assert silent[0].layout.fused_norms


def test_sharded_weights_stay_in_32_bits() -> None:
    layout = case(LLAMA, precision="amp_bf16", zero="3 (FSDP)", source="llm-foundry").layout
    assert (layout.zero, layout.recipe.name) == (3, "fsdp-bf16")
    assert layout.software is Software.FSDP
    assert case(LLAMA, zero="1 over 4 ranks").layout.shard_group == 4
    assert case(LLAMA, zero="hybrid").layout.zero == 3


@pytest.mark.parametrize(
    ("changed", "schedule", "chunks"),
    [
        ({"schedule": "none"}, JobSchedule.ONE_F_ONE_B, 1),
        ({"schedule": "interleaved", "vpp": "5"}, JobSchedule.INTERLEAVED, 5),
        ({"schedule": "interleaved"}, JobSchedule.INTERLEAVED, 10),
        ({"schedule": "1f1b", "vpp": "1"}, JobSchedule.ONE_F_ONE_B, 1),
        ({"schedule": "gpipe"}, JobSchedule.GPIPE, 1),
        ({"schedule": "zb-1p"}, JobSchedule.ZB_H1, 1),
        ({"schedule": "zb-2p"}, JobSchedule.ZB_H2, 1),
        ({"schedule": "interleaved", "pp": "1", "dp": "16"}, JobSchedule.ONE_F_ONE_B, 1),
    ],
)
def test_schedules_are_read_with_their_chunks(
    changed: dict[str, str], schedule: JobSchedule, chunks: int
) -> None:
    layout = case(LLAMA, **changed).layout
    assert (layout.schedule, layout.chunks) == (schedule, chunks)


def test_layers_that_divide_with_two_more_leave_one_out_at_both_ends() -> None:
    layout = case(LLAMA, model="llama3.1-405b", gpus="128", pp="8").layout
    assert layout.stage_layers == (15, 16, 16, 16, 16, 16, 16, 15)
    assert case(LLAMA).layout.stage_layers == ()
    given = case(LLAMA, stage_layers="19 21 21 19").layout.stage_layers
    assert given == (19, 21, 21, 19)


def test_the_network_is_that_of_the_row_the_source_or_the_device() -> None:
    def bandwidth(**changed: str) -> float:
        found: float = case(LLAMA, **changed).cluster.network.bandwidth
        return found

    assert bandwidth() == 50e9
    assert bandwidth(notes="4x100 Gb RoCE per node") == pytest.approx(6.25e9)
    assert bandwidth(gpu="V100-16GB (p3.16xlarge)", precision="FP16") == pytest.approx(25e9 / 64)
    made = case(LLAMA, gpu="RTX 4090")
    assert made.cluster.network.bandwidth == pytest.approx(12.5e9 / 8)
    assert "a network of 100 Gb/s per node" in made.assumed


def test_columns_that_other_files_add_fill_what_is_empty(tmp_path: Path) -> None:
    runs, added = tmp_path / "runs.csv", tmp_path / "added.csv"
    keys = [*LLAMA, "recompute", "zero"]
    values = LLAMA | {"zero": "1"}
    runs.write_text(f"{','.join(keys)}\n{','.join(values.get(key, '') for key in keys)}\n")
    added.write_text(
        "id,sweep,zero,recompute,dispatcher,gradient_bytes,offload_layers,graphs,notes\n"
        "1,another:70B,,none,,,,,\n"
        "1,someone:70B,3,full,hybridep,2,40,full_iteration,x\n9,,3,,,,,,\n"
    )
    (row,) = rows.read_rows([runs], [added])
    made = rows.case_of(row)
    layout = made.layout
    assert (layout.zero, layout.recompute) == (1, {Recompute.FULL})
    assert layout.dispatcher is Dispatcher.HIERARCHICAL
    assert layout.recipe.gradient_bytes == 2
    assert layout.offload_activations == 0.5
    assert layout.graphs


@pytest.mark.parametrize(
    ("row", "changed", "reason"),
    [
        (LLAMA, {"gpu": ""}, "gpu: not stated"),
        (LLAMA, {"gpu": "Gaudi 9"}, 'accelerator: "Gaudi 9'),
        (LLAMA, {"gpus": ""}, "gpus: not stated"),
        (LLAMA, {"tp": "", "pp": "", "dp": ""}, "layout: none of tp, pp and dp is stated"),
        (LLAMA, {"dp": "64"}, "1024 devices of 64"),
        (LLAMA, {"tp": "0"}, "a degree of 0"),
        (LLAMA, {"tp": "x"}, "tp: 'x' is no number"),
        (LLAMA, {"tp": "1e9"}, "tp: 1e+09 is no count"),
        (LLAMA, {"iter_s": "nan"}, "iter_s: 'nan' is no number of at least 0"),
        (LLAMA, {"peak_mem_gb": "x"}, "peak_mem_gb: 'x' is no number"),
        (LLAMA, {"gpu": "V100-32GB"}, "computes in bf16, which v100-32gb does not"),
        (LLAMA, {"pp": "200", "gpus": "3200"}, "200 stages, and llama3-70b has 80 layers"),
        (LLAMA, {"stage_layers": "80 0"}, "2 counts for pipeline 4"),
        (GPT, {"heads": "0"}, "heads: 0 and 0"),
        (LLAMA, {"tp": "1.5"}, "tp: 1.5 is no count"),
        (LLAMA, {"global_batch": ""}, "global_batch: not stated"),
        (LLAMA, {"precision": ""}, "precision: not stated"),
        (LLAMA, {"precision": "INT3"}, "precision: 'int3' is not known"),
        (LLAMA, {"recompute": "selective (foo)"}, "recompute: 'foo' is no module"),
        (LLAMA, {"schedule": "zb-v"}, "schedule: 'zb-v' is none that the runtime runs"),
        (LLAMA, {"zero": "what"}, "zero: 'what' names no stage"),
        (LLAMA, {"iter_s": ""}, "measured: neither a time nor a peak"),
        (LLAMA, {"model": "Nemotron"}, "layers: not stated"),
        (GPT, {"kv_heads": "MLA"}, "whose ranks are not stated"),
        (GPT, {"heads": "7"}, "heads: 7 and 7 for a model of width 6144"),
    ],
)
def test_what_cannot_be_priced_is_refused_with_the_reason(
    row: dict[str, str], changed: dict[str, str], reason: str
) -> None:
    made = rows.case_of({key: value for key, value in (row | changed).items() if value})
    assert isinstance(made, rows.Refusal)
    assert reason in made.reason
