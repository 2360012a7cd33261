"""Descriptions have as many parameters as the models that they describe, to the digit."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagecut import InputError
from stagecut.instances.costs import models
from stagecut.instances.costs.description import Attention, Norm, forward_flops
from stagecut.instances.costs.hugging_face import from_config
from stagecut.instances.costs.models import model_description, shipped_model, shipped_models

#: What checkpoints on Hugging Face have (their safetensors' totals), or the paper says.
PUBLISHED = {
    "bert-base": 109_514_298,  # with the head for masked tokens
    "bert-large": 335_174_458,
    "bloom-176b": 176_247_271_424,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "gemma3-27b": 27_009_346_304,  # of its text model
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "kimi-k2": 1_026_408_232_448,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama4-scout": 107_769_861_120,  # of its text model
    "llama4-maverick": 400_711_848_960,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "moonlight-16b-a3b": 15_960_110_208,
    "opt-6.7b": 6_658_473_984,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
    "vit-h14": 632_045_800,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shipped_description_has_the_parameters_of_the_checkpoint(name: str) -> None:
    assert shipped_model(name).parameters == PUBLISHED[name]


def test_deepseek_v3_has_those_of_its_checkpoint_and_of_its_multi_token_prediction() -> None:
    model = shipped_model("deepseek-v3")
    # The main model's, with a number per expert that balances; and the whole checkpoint's, which
    # holds embedding and head a second time.
    assert model.parameters - model.mtp_parameters == 671_026_419_200
    assert model.parameters + 2 * model.vocabulary * model.hidden == 684_489_845_504


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt3-175b", 174.6), ("gpt3-6.7b", 6.66), ("opt-175b", 174.6), ("opt-66b", 65.7)],
)
def test_where_no_exact_count_is_public_it_is_the_paper_s(name: str, billions: float) -> None:
    assert shipped_model(name).parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_every_shipped_description_is_compared_with_something() -> None:
    compared = {*PUBLISHED, "deepseek-v3", "gpt3-175b", "gpt3-6.7b", "opt-175b", "opt-66b"}
    alike = {"qwen2.5-7b": "qwen2-7b", "qwen2.5-72b": "qwen2-72b"}
    for name, other in alike.items():
        assert shipped_model(name).blocks == shipped_model(other).blocks
    left = set(shipped_models()) - compared - set(alike)
    # Of the same architecture as others, by the same reader.
    assert left == {
        "gemma3-12b", "gemma3-4b", "opt-1.3b", "opt-13b", "opt-30b", "qwen2-57b-a14b", "qwen3-14b",
    }  # fmt: skip


def test_activated_parameters_are_those_of_the_names() -> None:
    for name, billions in (("qwen3-235b-a22b", 22), ("qwen3-30b-a3b", 3.3), ("deepseek-v3", 37)):
        model = shipped_model(name)
        idle = sum(
            block.routed_parameters(model.hidden)
            * (1 - block.experts.top_k / block.experts.experts)
            for block in model.blocks
            if block.experts
        )
        active = (model.parameters - model.mtp_parameters - idle) / 1e9
        assert active == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Llama-3.1-405B", "llama3.1-405b"), ("meta-llama/Llama-3.1-405B", "llama3.1-405b"),
        ("LLAMA3.1_405B", "llama3.1-405b"), ("Llama 3 70B", "llama3-70b"),
        ("Llama-3.1-8B-Instruct", "llama3-8b"), ("LLaMA-2 7B", "llama2-7b"),
        ("google/gemma-2-9b-it", "gemma2-9b"), ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("DeepSeek-V3-Base", "deepseek-v3"), ("Qwen3_235B_a22B", "qwen3-235b-a22b"),
        ("GPT OSS 120B", "gpt-oss-120b"), ("GPT-3 175B", "gpt3-175b"),
    ],
)  # fmt: skip
def test_a_name_is_taken_in_any_spelling(spelling: str, name: str) -> None:
    assert shipped_model(spelling).name == name


def test_no_two_descriptions_go_by_one_name() -> None:
    meant: dict[str, set[str]] = {}
    for known, entry in models._shipped().items():
        for name in (known, *entry.get("also", ())):
            meant.setdefault(models._plain(name), set()).add(known)
    assert {name: who for name, who in meant.items() if len(who) > 1} == {}


LAYERS: list[tuple[str, list[int | None]]] = [
    ("gemma2-2b", [4096, None, 4096, None]),
    ("gemma3-1b", [512, 512, 512, 512, 512, None, 512]),
    ("gpt-oss-20b", [128, None, 128]),
    ("llama4-scout", [8192, 8192, 8192, None, 8192]),
    ("mistral-7b", [4096, 4096]),
    ("qwen2-7b", [None, None]),
]


@pytest.mark.parametrize(("name", "windows"), LAYERS)
def test_layers_see_a_window_where_the_architecture_says(
    name: str, windows: list[int | None]
) -> None:
    blocks = shipped_model(name).blocks[: len(windows)]
    assert [block.attention.window for block in blocks if block.attention] == windows


def test_windows_of_qwen_begin_at_layer_28_by_default() -> None:
    fields = config("qwen2-7b", use_sliding_window=True, sliding_window=64, num_hidden_layers=30)
    fields |= dict.fromkeys(("max_window_layers", "layer_types"))
    blocks = from_config(fields, name="qwen2").blocks
    assert [block.attention.window for block in blocks if block.attention] == [None] * 28 + [64] * 2


def test_layers_have_experts_where_the_architecture_says() -> None:
    def sparse(name: str) -> list[bool]:
        return [block.experts is not None for block in shipped_model(name).blocks]

    assert sparse("llama4-maverick") == [False, True] * 24
    assert sparse("deepseek-v3") == [False] * 3 + [True] * 58
    assert sparse("kimi-k2") == [False] + [True] * 60
    assert all(sparse("qwen3-30b-a3b"))


def test_equal_layers_are_one_type() -> None:
    assert len(shipped_model("llama3.1-405b").layer_types) == 1
    assert len(shipped_model("gemma3-27b").layer_types) == 2
    encoder, decoder = shipped_model("t5-large").layer_types
    assert encoder.cross_attention is None
    assert decoder.cross_attention is not None
    assert not decoder.cross_attention.causal
    assert shipped_model("bert-base").layer_types[0].norm is Norm.LAYER


def config(name: str, **changed: Any) -> dict[str, Any]:
    """Return the configuration of a shipped description, changed."""
    fields: dict[str, Any] = models._shipped()[name]["config"] | changed
    return {key: value for key, value in fields.items() if value != "absent"}


def test_of_a_model_with_several_parts_the_text_model_is_read() -> None:
    text = config("gemma3-4b", vocab_size="absent", num_attention_heads="absent")
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    assert from_config(whole, name="g").parameters == shipped_model("gemma3-4b").parameters


def test_listed_layer_types_come_before_the_pattern() -> None:
    kinds = ["full_attention"] * 25 + ["sliding_attention"]
    model = from_config(config("gemma2-2b", layer_types=kinds), name="g")
    assert [block.attention.window for block in model.blocks if block.attention] == (
        [None] * 25 + [4096]
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "mamba2"}, r'^x: architecture "mamba2" is not known; known are llama, .*'),
        ({}, "architecture null is not known"),
        (config("llama3-8b", hidden_size="absent"), "x: hidden_size: missing"),
        (config("llama3-8b", hidden_size=4096.5), "x: hidden_size: 4096.5; it must be a whole"),
        (config("llama3-8b", num_hidden_layers=0), "num_hidden_layers: 0; it must be a whole"),
        (config("llama3-8b", num_hidden_layers=10**6), "at most 100000"),
        (config("llama3-8b", num_key_value_heads=7), "7 does not divide 32 heads"),
        (config("gpt2", n_head=7), "7 heads do not divide hidden_size 768"),
        (config("llama3-8b", tie_word_embeddings="no"), 'tie_word_embeddings: "no"; it must be'),
        (config("qwen3-8b", head_dim="absent"), "head_dim: missing"),
        (config("gpt-oss-20b", layer_types=["x"] * 24), 'layer_types: "x" is not one of'),
        (config("gpt-oss-20b", layer_types=[["x"]] * 24), "layer_types: .…. is not one of"),
        (config("qwen3-30b-a3b", mlp_only_layers=[[0]]), "mlp_only_layers: .….; give numbers of"),
        (config("gpt-oss-20b", layer_types=[]), "layer_types: 0 entries for 24 layers"),
        (config("opt-1.3b", word_embed_proj_dim=512), "word_embed_proj_dim differs"),
        (config("vit-b16", patch_size=15), "patch_size 15 does not divide image_size 224"),
        (config("gpt2", resid_pdrop="x"), 'resid_pdrop: "x"; it must be a number'),
    ],
)
def test_what_is_unknown_or_wrong_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_config(fields, name="x")


def test_a_file_is_read_by_its_path_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config("llama3-8b")))
    for path in (folder, folder / "config.json"):
        model = model_description(path)
        assert model.name == "my-model"
        assert model.blocks == shipped_model("llama3-8b").blocks
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="its JSON ends too early"):
        model_description(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(InputError, match="it must be an object"):
        model_description(folder)
    with pytest.raises(InputError, match="no such file"):
        model_description(tmp_path / "none.json")


def test_a_description_is_read_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = json.dumps(config("llama3-8b"))
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert model_description(str(pipe)).blocks == shipped_model("llama3-8b").blocks
    writer.join()


def test_an_unknown_name_is_refused_with_the_names_that_are_known() -> None:
    with pytest.raises(InputError, match=re.escape("shipped are bert-base, ")):
        shipped_model("mine")
    with pytest.raises(InputError, match=re.escape("did you mean llama3-8b or ")):
        shipped_model("Llama3-8")


def test_a_token_uses_no_more_experts_than_there_are() -> None:
    config = {
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
        "num_local_experts": 4, "num_experts_per_tok": 5,
    }  # fmt: skip
    with pytest.raises(InputError, match=r"^x: experts: 5 of a token, and there are 4$"):
        from_config(config, name="x")


def test_operations_are_those_of_the_published_formula() -> None:
    for name in ("gpt3-175b", "gpt2-xl"):
        model = shipped_model(name)
        layers, h, v, s = len(model.blocks), model.hidden, model.vocabulary, 1024
        # Narayanan et al. 2021, equation (3) without recomputation.
        formula = 72 * layers * s * h * h * (1 + s / (6 * h) + v / (12 * layers * h))
        assert 3 * forward_flops(model, s) == pytest.approx(formula, rel=1e-12)


def test_a_token_costs_twice_its_activated_weights_and_what_it_attends_to() -> None:
    model = shipped_model("qwen3-30b-a3b")
    attention, experts = model.blocks[0].attention, model.blocks[0].experts
    assert attention is not None
    assert experts is not None
    idle = (experts.experts - experts.top_k) * experts.expert.parameters(model.hidden)
    norms = 2 * model.hidden + 2 * attention.head_dim
    weights = model.blocks[0].parameters(model.hidden) - idle - norms
    seen = 2 * attention.heads * attention.head_dim * 4096
    each = 48 * (2 * weights + 2 * seen) + 2 * model.vocabulary * model.hidden
    assert forward_flops(model, 4096) == pytest.approx(4096 * each, rel=1e-12)


def test_a_window_bounds_what_a_token_attends_to() -> None:
    windowed = shipped_model("mistral-7b")
    whole = from_config(config("mistral-7b", sliding_window=None), name="m")
    assert forward_flops(windowed, 4096) == forward_flops(whole, 4096)
    more = forward_flops(whole, 8192) - forward_flops(windowed, 8192)
    assert more == 32 * 2 * 8192 * 4096 * 32 * 2 * 128


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 7, 63, 64, 200, None])
def test_positions_that_tokens_see_are_those_of_the_mask(causal: bool, window: int | None) -> None:
    """On average of 64 tokens, to the half position by which the diagonal is counted."""
    apart = np.subtract.outer(np.arange(64), np.arange(64))
    mask = abs(apart) < (window or 64)
    if causal:
        mask &= apart >= 0
    attention = Attention(4, 4, 16, window=window, causal=causal)
    assert attention.visible(64) == pytest.approx(mask.sum() / 64, abs=1.0)
