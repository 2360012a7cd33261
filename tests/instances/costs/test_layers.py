"""Times of layers: what degrees, recomputation, formats and the host change of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stagecut.instances.costs.calibration import Calibration
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.layers import LayerPrices, LayerTime, Setting, core_attention
from stagecut.instances.costs.layout import (
    RECIPES,
    ContextKind,
    Graphs,
    Layout,
    Overlap,
    Recompute,
    axis_stride,
)
from stagecut.instances.costs.models import shipped_model

CLUSTER = training_cluster("h100:8x16")
#: A host that issues kernels in no time, so that times are the device's.
DEVICE = Calibration(host=0.0)
LLAMA = shipped_model("llama3-70b")
DEEPSEEK = shipped_model("deepseek-v3")


def block(
    layout: Layout, model: ModelDescription = LLAMA, table: Calibration = DEVICE
) -> LayerTime:
    """Return the last layer type's time under a layout."""
    return LayerPrices(model, CLUSTER, table).times(layout).recomputed[-1]


BASE = Layout(sequence=8192)


def test_terms_are_the_passes() -> None:
    """By term, the seconds of both passes add up, whatever is recomputed or waited for."""
    table = Calibration()
    for model in (LLAMA, DEEPSEEK):
        for layout in (
            BASE,
            replace(BASE, tensor=8, sequence_parallel=True, recompute=frozenset(["full"])),
            replace(BASE, tensor=2, context=4, expert=8, recompute=frozenset(["core_attn", "mlp"])),
        ):
            time = block(layout, model, table)
            assert sum(dict(time.terms).values()) == pytest.approx(time.forward + time.backward)
            assert 0 < time.weights < time.backward
            assert all(seconds >= -1e-12 for _, seconds in time.terms)


def test_full_recomputation_is_a_forward_pass_more() -> None:
    """And recomputing every second product is less."""
    plain, full = block(BASE), block(replace(BASE, recompute=frozenset(["full"])))
    assert full.backward - plain.backward == pytest.approx(plain.forward)
    operators = block(replace(BASE, recompute=frozenset([Recompute.OPERATORS])))
    assert plain.backward < operators.backward < full.backward


def test_tensor_parallelism_divides_products_and_adds_collectives() -> None:
    """Products by a little less than the degree; the exchange hides beside them where asked."""
    one, four = (dict(block(replace(BASE, tensor=t)).terms) for t in (1, 4))
    assert one["tensor"] == 0.0
    assert one["products"] / 4 < four["products"] < one["products"] / 3.5
    layout = replace(BASE, tensor=4, sequence_parallel=True)
    hidden = block(replace(layout, overlap=Overlap(tensor=True)))
    exposed = dict(block(layout).terms)["tensor"]
    assert dict(hidden.terms)["tensor"] == pytest.approx(exposed * (1 - DEVICE.tensor_hidden))
    assert dict(block(layout).terms)["pointwise"] < four["pointwise"]


def test_context_parallelism_by_kind() -> None:
    """Rings hide behind attention of long sequences, gathering does not."""
    layout = replace(BASE, context=4, sequence=131072)
    exposed = {
        kind: dict(block(replace(layout, context_kind=kind)).terms)["context"]
        for kind in ContextKind
    }
    assert 0 < exposed[ContextKind.RING] < exposed[ContextKind.ALL_GATHER]
    assert exposed[ContextKind.ALL_TO_ALL] > 0
    whole = dict(block(replace(BASE, sequence=131072)).terms)["attention"]
    assert dict(block(layout).terms)["attention"] == pytest.approx(whole / 4, rel=0.01)


def test_more_devices_per_layer_of_experts() -> None:
    """Fewer rows wait for fewer weights; what crosses nodes costs more than what does not."""
    few, many = (dict(block(replace(BASE, expert=e), DEEPSEEK).terms) for e in (8, 64))
    assert few["experts"] < many["experts"]
    assert many["products"] < few["products"]
    hidden = block(replace(BASE, expert=64, overlap=Overlap(experts=True)), DEEPSEEK)
    assert dict(hidden.terms)["experts"] < 0.2 * many["experts"]


def test_dispatch_is_slowed_by_links_above_leaf_switches() -> None:
    """To 15 of 16 nodes, through links of an eighth of their cards' bandwidth."""
    network = replace(CLUSTER.network, leaf=8, oversubscription=8.0)
    slowed = LayerPrices(DEEPSEEK, replace(CLUSTER, network=network), DEVICE)
    layout = replace(BASE, expert=128)
    times = [
        dict(prices.times(layout).blocks[-1].terms)["experts"]
        for prices in (LayerPrices(DEEPSEEK, CLUSTER, DEVICE), slowed)
    ]
    assert times[1] == pytest.approx(8 * times[0], rel=0.05)


def test_windows_save_time_where_kernels_leave_out_what_they_hide() -> None:
    """Of a 16th of the sequence: 31 / 256 of the causal mask's scores, or all of both triangles."""
    attention = LLAMA.blocks[0].attention
    assert attention is not None
    narrow = replace(attention, window=BASE.sequence // 16)
    times = {}
    for software in ("megatron", "stagecut"):
        at = Setting(replace(BASE, software=software), CLUSTER, DEVICE)
        whole, windowed = (core_attention(at, one).forward for one in (attention, narrow))
        times[software] = windowed / whole
    assert times["megatron"] == pytest.approx(31 / 256, rel=0.05)
    assert times["stagecut"] == pytest.approx(2, rel=0.05)


def test_narrow_products_are_faster_and_casts_are_not_free() -> None:
    """8-bit products of large layers; their inputs are cast by memory-bound kernels."""
    wide, narrow = block(BASE), block(replace(BASE, recipe=RECIPES["megatron-fp8"]))
    assert narrow.forward < wide.forward
    assert narrow.forward > wide.forward / 2


def test_a_slow_host_is_the_floor() -> None:
    """Kernels are issued one by one, except those of recorded graphs."""
    small = replace(BASE, sequence=128)
    slow = Calibration(host=1e-3)
    waiting = block(small, DEEPSEEK, slow)
    assert waiting.forward > 30e-3
    assert waiting.backward > 1.9 * waiting.forward
    graphs = [block(replace(small, graphs=g), DEEPSEEK, slow).forward for g in Graphs]
    assert graphs[0] > 2 * graphs[1]
    assert graphs[1] > 1.5 * graphs[2]


@pytest.mark.parametrize("host", [0.0, 1e-5, 1e-4])
def test_faster_devices_make_neither_half_of_a_backward_pass_slower(host: float) -> None:
    """Zero-bubble schedules run both halves apart; the host's launches limit either."""
    device, table = CLUSTER.accelerator, Calibration(host=host)
    faster = (
        replace(device, bandwidth=2 * device.bandwidth),
        replace(device, peak={precision: 2 * peak for precision, peak in device.peak.items()}),
    )
    for model in (LLAMA, DEEPSEEK):
        own = block(replace(BASE, sequence=512), model, table)
        for one in faster:
            nodes = (replace(CLUSTER.nodes[0], accelerator=one),)
            prices = LayerPrices(model, replace(CLUSTER, nodes=nodes), table)
            new = prices.times(replace(BASE, sequence=512)).blocks[-1]
            assert new.backward <= own.backward
            assert new.weights <= own.weights * (1 + 1e-9)
            rest = own.backward - own.weights
            assert new.backward - new.weights <= rest * (1 + 1e-9)


def test_strides_follow_the_order_of_axes() -> None:
    """Tensor-parallel ranks are neighbours unless another order is given."""
    layout = Layout(tensor=4, context=2, data=8, pipeline=2)
    assert [axis_stride(layout, axis) for axis in layout.order] == [1, 4, 8, 64]
    turned = replace(layout, order=("pipeline", "tensor", "context", "data"))
    assert axis_stride(turned, "data") == 16


@pytest.mark.parametrize(
    "name", ["t5-large", "bert-large", "vit-l16", "gpt-oss-120b", "gemma3-27b"]
)
def test_every_kind_of_model_has_a_price(name: str) -> None:
    """Encoders, decoders that attend to them, classifiers, windows and sinks."""
    model = shipped_model(name)
    times = LayerPrices(model, CLUSTER, Calibration()).times(replace(BASE, sequence=512))
    assert len(times.blocks) == len(model.layer_types)
    for time in (*times.blocks, *times.recomputed):
        assert 0 < time.forward < time.backward
    assert times.embedding.forward > 0
