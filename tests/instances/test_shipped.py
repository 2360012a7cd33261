"""The shipped workloads: published counts, and what must hold between their four forms."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from project import ROOT

import stagecut
from stagecut import InputError, Throughput, Workload
from stagecut.instances import price
from stagecut.instances.costs.clusters import accelerators
from stagecut.instances.formats.files import save
from stagecut.instances.generate.architectures import ARCHITECTURES
from stagecut.instances.generate.architectures.lowering import to_workload
from stagecut.instances.generate.architectures.network import (
    Network,
    NetworkTensor,
    concat,
    conv,
    elementwise,
    linear,
)
from stagecut.instances.generate.catalogue import CATALOGUE, build, generate
from stagecut.instances.generate.roofline import CPU_CORE, machine
from stagecut.runtime import evaluate

MEMORY = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
A100 = machine()

#: Counted to the last parameter by the published checkpoint or implementation.
EXACT = {
    "gpt2-xl": 1_557_611_200,
    "llama3-8b": 8_030_261_248,
    "mixtral-8x7b": 46_702_792_704,
    "bert-large": 336_226_108,
    "t5-large": 737_668_096,
    "vit-l16": 304_326_632,
    "resnet50": 25_557_032,
    "stable-diffusion-unet": 859_520_964,
}

#: Multiply-adds per sample as published, and the tolerance that conventions of counting need:
#: torchvision's model pages; PVT's Table 4.
MACS = {
    "resnet50": (4.09e9, 0.01),
    "vit-l16": (61.55e9, 0.01),
    "semantic-fpn": (45.6e9, 0.03),
}


#: All entries, of which one in three is run with methods: a form of each architecture.
PLANNED = [
    pytest.param(name, marks=() if k % 3 == 0 else pytest.mark.slow)
    for k, name in enumerate(CATALOGUE)
]


def total(workload: Workload, column: str) -> float:
    return float(workload.extra[column].sum())


def product_flops(network: Network) -> float:
    """Operations in matrix products and fused attention: what published counts count."""
    return sum(op.flops for op in network.operators if op.products or op.kind == "attention")


def default_network(name: str) -> Network:
    architecture = ARCHITECTURES[name]
    return architecture.network(architecture.batch, architecture.size, 1)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_has_the_published_parameters(name: str) -> None:
    count = total(build(name), "parameters")
    assert count == pytest.approx(CATALOGUE[name].architecture.parameters, rel=0.01)
    architecture = name.removesuffix("-training").removesuffix("-operators")
    if architecture in EXACT:
        assert count == EXACT[architecture]


@pytest.mark.parametrize("name", MACS)
def test_flops_are_the_published_ones(name: str) -> None:
    published, tolerance = MACS[name]
    flops = product_flops(default_network(name)) / ARCHITECTURES[name].batch
    assert flops / 2 == pytest.approx(published, rel=tolerance)
    assert total(build(name), "flops") == pytest.approx(
        2 * published * ARCHITECTURES[name].batch, rel=tolerance + 0.02
    )


@pytest.mark.parametrize(
    ("name", "matrices", "attention"),
    [
        # parameters that every token meets, and 2·S·width·(products of scores) per block
        ("gpt2-xl", 48 * 12 * 1600**2 + 50257 * 1600, 48 * 4 * 1024 * 1600),
        ("llama3-8b", 8_030_261_248 - 128256 * 4096, 32 * 2 * 2048 * 4096),
        # 12.9e9 active parameters: 2 of 8 experts (arXiv:2401.04088, section 2: 13B)
        ("mixtral-8x7b", 12_879_925_248 - 32000 * 4096, 32 * 2 * 2048 * 4096),
    ],
)
def test_language_models_compute_twice_their_parameters_per_token(
    name: str, matrices: int, attention: int
) -> None:
    architecture = ARCHITECTURES[name]
    tokens = architecture.batch * architecture.size
    expected = tokens * (2 * matrices + attention)
    assert product_flops(default_network(name)) == pytest.approx(expected, rel=1e-3)


def test_llama_on_an_a100_takes_what_its_matrices_take() -> None:
    ideal_ms = 1e3 * 2 * (8.03e9 - 128256 * 4096) * 2048 / 312e12
    time = float(build("llama3-8b").times["accelerator"].sum())
    assert ideal_ms < time < 1.2 * ideal_ms


@pytest.mark.parametrize("name", PLANNED)
def test_the_suggested_cluster_gives_a_verified_plan(name: str) -> None:
    workload = build(name)
    assert workload.cluster is not None
    assert [kind.host for kind in workload.cluster.kinds] == [False, True]
    accelerator = workload.cluster.kinds[0]
    assert workload.memory_bytes.sum() < 0.8 * accelerator.count * accelerator.memory_bytes
    result = stagecut.solve(workload, method="greedy")
    assert result.plan is not None
    report = evaluate(workload, workload.cluster, Throughput(), result.plan.solution)
    assert not report.violations
    assert report.objective == result.plan.objective
    assert report.objective <= 1.001 * workload.times["accelerator"].sum()  # a core is no help


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("suffix", ["", "-training"])
def test_layers_and_operators_add_up_to_the_same(name: str, suffix: str) -> None:
    layers, operators = build(name + suffix), build(f"{name}-operators{suffix}")
    assert layers.n < operators.n
    for column in ("parameters", "flops", *MEMORY):
        assert total(layers, column) == pytest.approx(total(operators, column), rel=1e-12)
    for kind in ("accelerator", "cpu"):
        assert layers.times[kind].sum() == pytest.approx(operators.times[kind].sum(), rel=1e-12)
    assert layers.output_bytes is not None
    assert operators.output_bytes is not None
    assert layers.output_bytes.sum() < operators.output_bytes.sum()


@pytest.mark.parametrize("name", CATALOGUE)
def test_memory_times_and_transfers_are_consistent(name: str) -> None:
    workload = build(name)
    parts = sum(workload.extra[column] for column in MEMORY)
    np.testing.assert_array_equal(workload.memory_bytes, parts)
    for kind, device in (("accelerator", A100), ("cpu", CPU_CORE)):
        floor_ms = 1e3 * workload.extra["flops"] / device.flops_per_s
        assert (workload.times[kind] >= floor_ms * (1 - 1e-12)).all()
    assert workload.cluster is not None
    assert workload.transfer is not None
    costs = price(workload, workload.cluster)
    np.testing.assert_allclose(costs.transfer[0], workload.transfer)
    assert workload.time_unit == "ms"
    assert {"source", "generator", "accelerator", "sample"} <= set(workload.provenance)
    tied = name.startswith(("gpt2-xl", "bert-large", "t5-large"))
    assert ("shared_weights" in workload.provenance) == tied


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name.endswith("-training")])
def test_training_mirrors_inference(name: str) -> None:
    training = build(name, tied="colour")
    inference = build(name.removesuffix("-training"), tied="colour")
    n = inference.n
    forward = n + 1  # and the loss
    assert training.n == 2 * forward
    assert training.ids[:n] == inference.ids
    assert training.ids[n] == "loss"
    np.testing.assert_array_equal(training.backward, np.arange(2 * forward) >= forward)
    for column in ("parameters", "flops", "weight_bytes"):
        np.testing.assert_array_equal(training.extra[column][:n], inference.extra[column])
    for kind in ("accelerator", "cpu"):
        np.testing.assert_array_equal(training.times[kind][:n], inference.times[kind])
    assert training.output_bytes is not None
    assert inference.output_bytes is not None
    np.testing.assert_array_equal(training.output_bytes[:n], inference.output_bytes)

    last = 2 * forward - 1
    edges = {(u, v) for u, v in training.edges.tolist()}
    ahead = {(u, v) for u, v in edges if v < forward}
    assert {(u, v) for u, v in ahead if v < n} == {(u, v) for u, v in inference.edges.tolist()}
    across = {(v, last - v) for v in range(forward)}
    assert edges == ahead | across | {(last - v, last - u) for u, v in ahead}
    np.testing.assert_array_equal(training.colours, training.colours[::-1])
    assert (training.colours >= 0).all()
    assert [training.ids[last - v] for v in range(forward)] == [
        f"{node}.backward" for node in training.ids[:forward]
    ]

    held = total(training, "weight_bytes") / 2
    assert total(training, "gradient_bytes") == 2 * held
    assert total(training, "optimizer_bytes") == 12 * held
    assert not training.extra["gradient_bytes"][:forward].any()
    assert not training.extra["weight_bytes"][forward:].any()
    flops = training.extra["flops"]
    assert flops[forward:].sum() == pytest.approx(2 * flops[:forward].sum(), rel=0.05)
    assert not (inference.extra["gradient_bytes"] + inference.extra["optimizer_bytes"]).any()


def test_the_first_convolution_needs_no_gradient_of_the_image() -> None:
    training = build("resnet50-operators-training")
    flops = dict(zip(training.ids, training.extra["flops"].tolist(), strict=True))
    assert flops["stem.conv.backward"] == flops["stem.conv"]
    assert flops["stage.0.0.reduce.conv.backward"] == 2 * flops["stage.0.0.reduce.conv"]


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("gpt2-xl-operators", 48 * 14 + 5),
        ("llama3-8b-operators", 32 * 15 + 3),
        # router 3, experts 5 each, combine 2, attention 9
        ("mixtral-8x7b-operators", 32 * (9 + 3 + 8 * 5 + 2) + 3),
        ("mixtral-8x7b", 32 * (1 + 1 + 8 + 1) + 2),
        ("bert-large-operators", 24 * 14 + 5 + 3 + 4),
        ("vit-l16-operators", 24 * 14 + 5 + 2),
        # convolutions, normalisations, activations, sums, pools, classifier
        ("resnet50-operators", 53 + 53 + 49 + 16 + 2 + 1),
        ("resnet50", 53 + 16 + 1 + 1),
        ("unet-operators", 2 * 18 + 4 + 4 + 4 + 1),
        ("unet", 23),  # "in total the network has 23 convolutional layers"
    ],
)
def test_graphs_have_the_expected_size(name: str, nodes: int) -> None:
    assert build(name).n == nodes


def test_tied_weights_share_a_colour_or_are_copied() -> None:
    shared = build("bert-large", tied="colour")
    colour = dict(zip(shared.ids, shared.colours.tolist(), strict=True))
    assert Counter(colour.values()) == {-1: shared.n - 2, 0: 2}
    assert colour["embedding"] == colour["head"] == 0
    assert shared.colour_labels == ("embedding",)
    copied = build("bert-large")
    assert (copied.colours == -1).all()
    assert total(copied, "parameters") == total(shared, "parameters")
    table = 2 * 30522 * 1024
    assert total(copied, "weight_bytes") == total(shared, "weight_bytes") + table

    training = build("bert-large-training", tied="colour")
    (four,) = [c for c in training.colour_classes if len(c) == 4]
    assert {training.ids[v] for v in four} == {
        "embedding",
        "head",
        "embedding.backward",
        "head.backward",
    }
    both = build("t5-large", tied="colour")
    assert sorted(both.ids[v] for v in both.colour_classes[0]) == [
        "decoder.embedding",
        "embedding",
        "head",
    ]
    assert (build("gpt2-xl").colours == -1).all()
    assert build("gpt2-xl", tied="colour").colours.max() == 0


def test_experts_are_parallel_and_skips_are_long() -> None:
    mixtral = build("mixtral-8x7b").to_networkx()
    for e in range(8):
        expert = f"block.3.expert.{e}"
        assert set(mixtral.predecessors(expert)) == {"block.3.router"}
        assert set(mixtral.successors(expert)) == {"block.3.combine"}
    unet = build("unet").to_networkx()
    for level in range(4):
        assert unet.has_edge(f"down.{level}.1", f"up.{level}.0")
    diffusion = build("stable-diffusion-unet").to_networkx()
    assert diffusion.out_degree("time") == 22  # every residual block reads the clock
    assert diffusion.has_edge("input", "up.0.2.residual")


def test_outputs_and_gradients_are_counted_once_per_tensor() -> None:
    net = Network("small", "one sample")
    with net.layer("a"):
        x = conv(net, NetworkTensor((1, 3, 8, 8)), 4, 3, "conv")
        x = elementwise(net, "relu", x)
    with net.layer("b"):
        y = conv(net, x, 4, 3, "conv")
        y = elementwise(net, "add", x, y)  # x is read twice, its gradient is sent once
    with net.layer("c"):
        z = conv(net, x, 4, 3, "conv")
    with net.layer("sum"):
        z = elementwise(net, "add", y, z)
    with net.layer("join"):
        concat(net, (z, x))
    workload = to_workload(net, A100, training=True)
    assert workload.output_bytes is not None
    size = dict(zip(workload.ids, workload.output_bytes.tolist(), strict=True))
    tensor = 2.0 * 4 * 8 * 8
    assert [size[node] for node in ("a", "b", "c", "sum", "join")] == [tensor] * 4 + [2 * tensor]
    assert size["b.backward"] == size["c.backward"] == size["sum.backward"] == tensor
    assert size["join.backward"] == size["loss.backward"] == 2 * tensor
    assert size["a.backward"] == 0
    # kept for the backward pass: what convolutions read and the output of relu are one tensor,
    # and the loss reads the last
    assert total(workload, "activation_bytes") == 3 * tensor


def test_roofline_takes_the_larger_of_compute_and_memory() -> None:
    flops, moved = np.array([312e9, 0.0, 0.0]), np.array([2039.0, 2039e6, 0.0])
    seconds = A100.seconds(flops, moved, np.array([0.0, 0.0, 2.0]))
    np.testing.assert_allclose(seconds, [1e-3, 1e-3, 2 * A100.launch_s])


def test_a_linear_operator_by_hand() -> None:
    net = Network("one", "8 rows")
    with net.layer("only"):
        linear(net, NetworkTensor((8, 1024)), 4096, "linear")
    workload = to_workload(net, A100)
    weights = 1024 * 4096 + 4096
    assert workload.extra["flops"][0] == 2 * 8 * 1024 * 4096
    moved = 2 * (8 * 1024 + weights + 8 * 4096)
    expected = max(workload.extra["flops"][0] / 312e12, moved / 2039e9) + A100.launch_s
    assert workload.times["accelerator"][0] == pytest.approx(1e3 * expected)
    assert workload.memory_bytes[0] == 2 * weights + 2 * 8 * 4096


def test_dimensions_and_devices_can_be_chosen() -> None:
    usual = build("llama3-8b")
    assert total(build("llama3-8b", batch=2), "flops") == 2 * total(usual, "flops")
    longer = build("llama3-8b", size=4096)
    assert 2 < total(longer, "flops") / total(usual, "flops") < 2.1
    faster = build("llama3-8b", accelerator="h100-sxm")
    assert (faster.times["accelerator"] < usual.times["accelerator"]).all()
    np.testing.assert_array_equal(faster.times["cpu"], usual.times["cpu"])
    small = build("llama3-8b-training", accelerator="v100-32gb")
    assert small.cluster is not None
    assert small.cluster.kinds[0].count == 8  # 138 GB
    seven = build("llama3-8b", accelerators=7).cluster
    assert seven is not None
    assert seven.kinds[0].count == 7


@pytest.mark.parametrize("name", ["unet-training", "mixtral-8x7b", "bert-large-operators"])
def test_files_keep_all_of_a_shipped_workload(name: str, tmp_path: Path) -> None:
    workload = stagecut.load(name)
    save(workload, tmp_path / "workload.json")
    again = stagecut.load(tmp_path / "workload.json")
    assert again.fingerprint == workload.fingerprint
    assert again.cluster == workload.cluster
    assert again.provenance == workload.provenance
    for column, values in workload.extra.items():
        np.testing.assert_array_equal(again.extra[column], values)


def test_clusters_without_links_can_be_planned() -> None:
    cluster = stagecut.accelerators_and_cpus(4, memory_bytes=40 * 2**30)
    result = stagecut.solve(build("gpt2-xl"), cluster, Throughput("contiguous"), method="greedy")
    assert result.plan is not None
    assert len(set(result.plan.placement.tolist())) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "gpt5"}, "gpt5: no shipped workload"),
        ({"name": "resnet50", "accelerator": "abacus"}, 'accelerator: "abacus"'),
        ({"name": "resnet50", "size": 100}, "size: 100 pixels"),
        ({"name": "unet", "size": 512}, "size: 512 pixels"),
        ({"name": "stable-diffusion-unet", "size": 12}, "size: latents of 12"),
        ({"name": "gpt2-xl", "size": 2048}, "size: 2048 tokens"),
        ({"name": "vit-l16", "batch": 0}, "batch: 0"),
        ({"name": "vit-l16", "accelerators": 0}, "accelerators: 0"),
        ({"name": "vit-l16", "tied": "knot"}, 'tied: "knot"'),
    ],
)
def test_what_cannot_be_built_is_said_in_a_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build(**options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_there_are_four_forms_of_each_architecture() -> None:
    assert len(CATALOGUE) == 4 * len(ARCHITECTURES)
    assert CATALOGUE["gpt2-xl-operators-training"].title == "GPT-2 XL, operators, training"


def test_all_accelerators_of_training_jobs_have_a_roofline() -> None:
    for name in (device.name for device in accelerators()):
        device = machine(name)
        assert device.name == name
        assert device.source
        assert device.flops_per_s > 100 * CPU_CORE.flops_per_s
        assert min(device.bytes_per_s, device.peer.bytes_per_s) > 1e9
    assert machine("b200").flops_per_s == 2250e12
    assert machine("tpu-v5e").launch_s == 0 < machine("t4").launch_s
    assert [machine(name).memory_bytes for name in ("a100", "h100", "v100")] == [80e9, 80e9, 32e9]
    with pytest.raises(InputError, match="did you mean h100 or h20"):
        machine("h10")


def test_the_same_in_every_process() -> None:
    names = [f"{name}{suffix}" for name in ARCHITECTURES for suffix in ("", "-operators-training")]
    here = [build(name).fingerprint for name in names]
    assert here == [build(name).fingerprint for name in names]
    code = (
        "from stagecut.instances.generate.catalogue import build\n"
        f"for name in {names}: print(build(name).fingerprint)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".dev"), "PYTHONHASHSEED": "7"},
    )
    assert other.stdout.split() == here


def known(name: str) -> tuple[float, float]:
    """Best contiguous max-load and bound, as `benchmarks/shipped_optima.py` found them."""
    text = (Path(__file__).parent / "shipped_optima.csv").read_text(encoding="utf-8")
    (row,) = (row for row in csv.DictReader(text.splitlines()) if row["name"] == name)
    return float(row["best_ms"]), float(row["bound_ms"] or 0)


@pytest.mark.parametrize("name", PLANNED)
def test_known_values_are_bounds(name: str) -> None:
    best, bound = known(name)
    workload = build(name)
    result = stagecut.solve(workload, problem=Throughput("contiguous"), method="greedy")
    assert result.plan is not None
    assert bound * (1 - 1e-9) <= result.plan.objective
    assert bound <= best
    assert workload.cluster is not None
    accelerators = workload.cluster.kinds[0].count
    even = workload.times["accelerator"].sum() / accelerators
    assert best > 0.99 * even  # a CPU core takes hardly anything


@pytest.mark.parametrize("name", [n for n in CATALOGUE if "operators" not in n])
def test_known_optima_are_those_of_the_ideal_dp(name: str) -> None:
    best, bound = known(name)
    assert best == bound
    result = stagecut.solve(build(name), problem=Throughput("contiguous"), method="dp")
    assert result.plan is not None
    assert result.plan.objective == pytest.approx(best, rel=1e-9)


def test_deeper_networks_and_microbatches_by_name() -> None:
    once, twice = generate("gpt2-xl-training"), generate("gpt2-xl-training@deeper=2")
    assert twice.n == once.n + 2 * 96
    assert twice.name == "gpt2-xl-training@deeper=2"
    several = generate("llama3-8b-training@microbatches=3")
    single = generate("llama3-8b-training")
    assert several.n == 3 * single.n
    assert len(several.edges) == 3 * len(single.edges)
    assert several.extra["weight_bytes"].sum() == single.extra["weight_bytes"].sum()
    activations = single.extra["activation_bytes"].sum()
    assert several.extra["activation_bytes"].sum() == pytest.approx(3 * activations)
    assert several.memory_bytes.sum() == pytest.approx(single.memory_bytes.sum() + 2 * activations)
    of = several.colours.reshape(3, -1)
    assert (of[0] == of[1]).all()
    assert (of[0] == of[2]).all()
    assert of.min() >= 0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpt2-xl@depth=2", "is no option"),
        ("gpt2-xl@", "is no option"),
        ("gpt2-xl@deeper=two", "not a whole number"),
        ("gpt2-xl@deeper=0", "at least 1"),
        ("gpt2-xl@deeper=2,deeper=3", "deeper is given twice"),
        ("gpt2-xl-operators-training@deeper=3000", "at most 2000000"),
        ("unet@deeper=2", "depth alone"),
        ("gpt3@deeper=2", "no shipped workload"),
    ],
)
def test_options_after_a_name_that_make_no_sense(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        generate(name)
