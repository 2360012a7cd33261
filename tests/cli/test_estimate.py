"""`stagecut estimate` and its Python counterpart: terms that add up, and refusals in one line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stagecut
from stagecut import Layout, cli, estimate, model_description, training_cluster
from stagecut.instances.costs import models
from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.terms import MEMORY_TERMS, TIME_TERMS
from stagecut.runtime.estimate import iteration_time
from stagecut.runtime.pictures.charts import shown_ranks

JOB = ["llama3-70b", "--cluster", "h100:8x8", "--global-batch", "512", "--sequence", "8192"]
CUT = [*JOB, "--tp", "4", "--pp", "4"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run_command(["estimate", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_terms_add_up_and_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *CUT)
    assert sum(found["terms"].values()) == pytest.approx(found["seconds"])
    assert set(found["terms"]) == set(TIME_TERMS)
    for rank in found["memory"]:
        assert sum(rank[term] for term in MEMORY_TERMS) == pytest.approx(rank["held"])
    assert [rank["pipeline_rank"] for rank in found["memory"]] == [0, 1, 2, 3]
    tokens = 512 * 8192 / found["seconds"] / 64
    assert found["tokens_per_s_per_gpu"] == pytest.approx(tokens)
    assert found["mfu"] == pytest.approx(found["tflops_per_gpu"] / 989.4)


def test_the_command_prices_what_the_function_does(capsys: pytest.CaptureFixture[str]) -> None:
    layout = Layout(
        tensor=4, sequence_parallel=True, pipeline=4, data=4, zero=1, global_batch=512,
        sequence=8192,
    )  # fmt: skip
    found = estimate("llama3-70b", layout, "h100:8x8")
    assert answer(capsys, *CUT) == json.loads(json.dumps(found.as_dict()))
    same = estimate(model_description("llama3-70b"), layout, training_cluster("h100:64"))
    assert same == found


def test_tables_say_time_memory_and_whether_it_fits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "job.svg"
    code, out, _ = run(capsys, *CUT, "--recompute", "full", "--plot", str(picture))
    assert code == 0
    for label in ("matrix products", "recomputation", "optimizer state", "rank 3", "it fits"):
        assert label in out
    assert "TFLOP/s/GPU of the model, MFU" in out
    drawn = picture.read_text()
    assert "<svg" in drawn
    assert f"written: {picture}" in out
    code, out, _ = run(capsys, *JOB)
    assert code == 0
    assert "it does not fit" in out


@pytest.mark.parametrize(("batch", "said"), [("1", "1 sequence"), ("2", "2 sequences")])
def test_a_batch_of_one_is_one_sequence(
    capsys: pytest.CaptureFixture[str], batch: str, said: str
) -> None:
    arguments = ("gpt2", "--cluster", "h100:1", "--global-batch", batch)
    code, out, _ = run(capsys, *arguments, "--sequence", "1")
    assert code == 0
    assert f"gpt2 on 1 h100-sxm, {said} ┏" in " ".join(out.split())


def test_what_helps_memory_is_seen_in_its_term(capsys: pytest.CaptureFixture[str]) -> None:
    def most(term: str, *more: str) -> float:
        return max(rank[term] for rank in answer(capsys, *CUT, *more)["memory"])

    assert most("activations", "--recompute", "full") < 0.2 * most("activations")
    assert most("optimizer", "--zero", "1") == pytest.approx(most("optimizer", "--zero", "0") / 4)
    assert most("optimizer", "--set", "offload_optimizer=1") == 0
    assert most("parameters", "--zero", "3") < most("parameters", "--zero", "1")


def test_what_lies_in_host_memory_costs_time(capsys: pytest.CaptureFixture[str]) -> None:
    before = answer(capsys, *CUT)
    for more, term in (
        (["--set", "offload_optimizer=0.5"], "optimizer"),
        (["--set", "offload_activations=1"], "offload"),
    ):
        after = answer(capsys, *CUT, *more)
        assert after["terms"][term] >= before["terms"][term]
        assert after["seconds"] >= before["seconds"]
        assert sum(after["terms"].values()) == pytest.approx(after["seconds"])
    device = training_cluster("h100:8").accelerator
    layout = Layout(data=8, global_batch=8, sequence=8192, offload_activations=1.0)
    near = replace(device, host_bandwidth=1e8)
    cluster = training_cluster("h100:8")
    far = replace(cluster, nodes=(replace(cluster.nodes[0], accelerator=near),))
    wait = estimate("llama3.2-1b", layout, far).terms["offload"]
    kept = estimate("llama3.2-1b", replace(layout, offload_activations=0.0), far).memory[0]
    assert wait == pytest.approx(2 * kept.activations / 1e8, rel=0.1)


def test_defaults_follow_what_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, *CUT, "--chunks", "5") == answer(
        capsys,
        *CUT,
        "--chunks",
        "5",
        "--schedule",
        "interleaved",
        "--dp",
        "4",
        "--set",
        "sequence_parallel=true",
    )
    assert answer(capsys, *JOB, "--zero", "3") == answer(
        capsys, *JOB, "--zero", "3", "--recipe", "fsdp-bf16", "--set", "software=fsdp"
    )
    short = answer(capsys, "gpt2", "--cluster", "h100:8", "--global-batch", "64")
    assert short == answer(
        capsys, "gpt2", "--cluster", "h100:8", "--global-batch", "64", "--sequence", "1024"
    )


def test_a_configuration_file_is_a_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(models._shipped()["llama3-70b"]["config"]))
    own, shipped = answer(capsys, str(path), *CUT[1:]), answer(capsys, *CUT)
    assert own | {"model": ""} == shipped | {"model": ""}
    assert own["model"] == tmp_path.name


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tp", "3"], "--tp 3 x --pp 1 x --cp 1 does not divide 64 devices of h100:8x8"),
        (["--tp", "0"], "--tp: 0; it must be at least 1"),
        (["--dp", "2"], "= 2 devices, and the cluster has 64"),
        (["--tp", "4", "--pp", "4", "--chunks", "32"], "128 stages, and llama3-70b has 80 layers"),
        (["--microbatch", "16"], "512 is not divided by microbatch 16 x data 64 = 1024"),
        (["--ep", "8"], "llama3-70b has no experts"),
        (["--schedule", "x"], "Invalid value for '--schedule'"),
        (["--recompute", "x"], '--recompute: "x" is not one of full'),
        (["--set", "overlap.x=true"], 'overlap: unknown field "x"; use one of gradients'),
        (["--recipe", "x"], "--recipe: 'x' is not one of megatron-bf16"),
        (["--set", 'stage_layers=[8,"x"]'], 'stage_layers[1] is "x"; it must be a whole number'),
        (["--set", "zero=2"], "--set zero: --zero gives it"),
        (["--set", "tensor=2"], "--set tensor: --tp gives it"),
        (["--set", "fused_attention=x"], 'fused_attention is "x"'),
        (["--plot", "x.gif"], "x.gif"),
    ],
)
def test_contradictions_end_with_code_2_and_one_line(
    capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    code, out, err = run(capsys, *JOB, *more)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_heads_that_the_tensor_degree_does_not_divide_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["qwen2.5-7b", "--cluster", "h100:8", "--tp", "8", "--global-batch", "8"]
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "tensor: 8 does not divide 28 heads of qwen2.5-7b; take one of 1, 2, 4\n" in err


@pytest.mark.parametrize("name", models.shipped_models())
def test_every_shipped_description_can_be_priced(name: str) -> None:
    model = model_description(name)
    tokens = model.positions or 1024
    layouts = [
        Layout(data=8, global_batch=16, sequence=tokens, zero=1),
        Layout(
            pipeline=2, chunks=2, schedule="interleaved", data=4, global_batch=16, sequence=tokens,
            recompute=frozenset({"core_attn"}), fused_attention=False,
        ),
    ]  # fmt: skip
    for layout in layouts:
        found = estimate(model, layout, "h100:8")
        assert 0 < found.seconds < math.inf
        assert all(seconds >= -1e-9 for seconds in found.terms.values())
        assert 0 < found.mfu < 1
        assert all(0 < rank.held < math.inf for rank in found.memory)


def test_weights_of_all_ranks_are_the_model_s() -> None:
    for name in ("llama3-70b", "qwen3-30b-a3b", "deepseek-v2-lite"):
        model = model_description(name)
        layout = Layout(pipeline=2, data=4, expert=4 if "llama" not in name else 1, global_batch=8)
        held = sum(rank.parameters for rank in estimate(model, layout, "h100:8").memory)
        # Each pipeline rank's, once per expert-parallel rank for what these share.
        routed = sum(block.routed_parameters(model.hidden) for block in model.blocks)
        own = model.parameters - routed + routed / layout.expert
        assert held == pytest.approx(2 * own, rel=1e-3)


def test_many_ranks_are_shown_by_their_ends_and_the_fullest() -> None:
    memory = [{"parameters": 1.0 + (rank == 20)} for rank in range(64)]
    limits = [2.0] * 64
    shown = shown_ranks(memory, limits)
    assert 20 in shown
    assert shown[0] == 0
    assert shown[-1] == 63
    assert len(shown) <= 25
    limits[30] = 0.5
    assert 30 in shown_ranks(memory, limits)
    figure = stagecut.estimate(
        "gpt2", Layout(data=8, global_batch=8, sequence=1024), "h100:8"
    ).plot()
    assert len(figure.axes) == 2


def test_ranks_are_held_against_their_own_devices() -> None:
    """The fullest is the one on small devices, though another has more; MFU is of all peaks."""
    found = stagecut.estimate(
        "llama3-8b",
        Layout(tensor=8, pipeline=2, global_batch=8, sequence=4096, stage_layers=(24, 8)),
        "h100:8+a100-40gb:8",
    )
    large, small = found.memory_limits
    assert large > 1.9 * small
    assert found.memory[0].needed > found.memory[1].needed
    assert (found.fullest, found.memory_limit) == (1, small)
    rows = found.as_dict()["memory"]
    assert [row["limit_bytes"] for row in rows] == [large, small]
    peaks = [nodes.accelerator.peak["bf16"] for nodes in found.cluster.nodes]
    assert found.mfu == pytest.approx(found.flops_per_s / (sum(peaks) / 2))
    figure = found.plot()
    assert "on 8 h100-sxm + 8 a100-40gb" in figure.get_suptitle()
    lines = figure.axes[1].get_legend_handles_labels()[1]
    assert sum(label.startswith("device: ") for label in lines) == 2


def test_stages_are_priced_on_the_nodes_that_they_lie_on() -> None:
    def passes(cluster: str, **changed: object) -> list[float]:
        layout = replace(
            Layout(tensor=8, pipeline=2, data=1, global_batch=16, sequence=4096), **changed
        )
        model, machines = model_description("llama3-8b"), training_cluster(cluster)
        table = calibration(machines.accelerator.family, layout.software)
        found = iteration_time(model, layout, machines, table)
        return [stage.forward + stage.backward for stage in found.stages]

    fast, slow = passes("h100:8x2"), passes("a100:8x2,network=50GB/s")
    mixed = passes("h100:8x1+a100:8x1,network=50GB/s")
    assert mixed == pytest.approx([fast[0], slow[1]])
    # With data-parallel ranks outermost each stage lies on both kinds, and layers take the slower;
    # the embedding's kernels are slower on the other kind.
    halves = {"tensor": 4, "data": 2, "order": ("tensor", "context", "pipeline", "data")}
    slow = passes("a100:8x2,network=50GB/s", **halves)
    both = passes("h100:8x1+a100:8x1,network=50GB/s", **halves)
    assert both[1] == pytest.approx(slow[1])
    assert slow[0] < both[0] < 1.01 * slow[0]


@pytest.mark.parametrize(("microbatch", "warned"), [(4, True), (2, False)])
def test_a_device_that_is_all_but_full_is_warned_of(
    capsys: pytest.CaptureFixture[str], microbatch: int, warned: bool
) -> None:
    """The layout of whole models that lost 14 % when it was measured, and the one that did not."""
    asked = ["gemma2-2b", "--cluster", "h200:1", "--global-batch", "4"]
    asked += ["--sequence", "4096", "--microbatch", str(microbatch), "--set", "software=stagecut"]
    code, out, _ = run(capsys, *asked, "--recipe", "fsdp-bf16")
    assert code == 0
    assert "it fits" in out
    assert ("PyTorch's allocator may slow" in out) is warned


@pytest.mark.parametrize(("sequence", "warned"), [("9216", True), ("8704", False)])
def test_a_peak_within_its_error_of_the_memory_is_warned_of(
    capsys: pytest.CaptureFixture[str], sequence: str, warned: bool
) -> None:
    asked = ["llama3-70b", "--cluster", "h100:8x8", "--global-batch", "512", "--tp", "4"]
    code, out, _ = run(capsys, *asked, "--pp", "8", "--sequence", sequence)
    assert code == 0
    assert "it fits" in out
    assert ("less is free than the error of predicted peaks" in out) is warned
