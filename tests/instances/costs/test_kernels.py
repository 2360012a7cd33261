"""Kernels and collectives take what the sheet allows at least, and what their shapes ask for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stagecut.instances.costs.calibration import (
    ELEMENT,
    PEAK_BY_LOAD,
    UNALIGNED_FACTOR,
    Calibration,
    Efficiency,
    calibration,
    calibrations,
    product,
)
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.collectives import (
    Group,
    LinkEfficiency,
    all_gather,
    all_reduce,
    all_to_all,
    message,
)
from stagecut.instances.costs.hardware import NumberFormat
from stagecut.instances.costs.layout import Software

CLUSTER = training_cluster("h100:8x16")
H100 = CLUSTER.accelerator
REACH = Efficiency()
#: No latency, no skew, all of the sheet's bandwidth: what remains is bytes over bandwidth.
IDEAL = LinkEfficiency(1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def test_products_are_never_faster_than_the_sheet() -> None:
    """Neither than the peak nor than the memory that moves the operands."""
    draw = random.Random(0)
    for _ in range(300):
        m, n, k = (draw.randint(1, 8192) for _ in range(3))
        count = draw.choice((1, 3, 64))
        precision = draw.choice((NumberFormat.BF16, NumberFormat.FP8))
        seconds = product(m, n, k, count, H100, precision, REACH)
        size = ELEMENT[precision]
        assert seconds >= 2 * m * n * k * count / H100.peak[precision]
        assert seconds >= count * (size * (m * k + k * n) + 2 * m * n) / H100.bandwidth


def test_large_products_reach_the_calibrated_part_of_the_peak() -> None:
    """All but what filling tiles and the last wave cost."""
    seconds = product(16384, 16384, 16384, 1, H100, NumberFormat.BF16, REACH)
    part = 2 * 16384**3 / H100.peak[NumberFormat.BF16] / seconds
    assert 0.95 * REACH.product < part < REACH.product


def test_odd_widths_are_padded_and_loaded_in_smaller_pieces() -> None:
    """The fewer bytes a row is a multiple of, the slower; never as slow as the ordinary units."""
    for odd, load in ((8188, 8), (8186, 4), (8185, 2)):
        for m, n, k in ((8192, odd, 8192), (8192, 8192, odd)):
            seconds = product(m, n, k, 1, H100, NumberFormat.BF16, REACH)
            padded = product(8192, 8192, 8192, 1, H100, NumberFormat.BF16, REACH)
            assert seconds == pytest.approx(
                padded / (PEAK_BY_LOAD[load] * UNALIGNED_FACTOR[H100.family]), rel=1e-2
            )
            assert seconds < 2 * m * n * k / H100.vector


def test_numbers_of_tokens_need_no_alignment() -> None:
    """An expert's rows, which may be any number, or a mean that is none."""
    for rows in (509, 341.33):
        odd = product(rows, 4096, 2048, 8, H100, NumberFormat.BF16, REACH)
        assert odd <= product(512, 4096, 2048, 8, H100, NumberFormat.BF16, REACH)
        odd = product(4096, 2048, rows, 8, H100, NumberFormat.BF16, REACH, turned=True)
        assert odd <= product(4096, 2048, 512, 8, H100, NumberFormat.BF16, REACH, turned=True)


def test_a_row_of_tiles_more_is_a_wave_more() -> None:
    """As many tiles as units fill a wave; one tile more begins another."""
    device = replace(H100, units=16)
    wave = product(2048, 256, 8192, 1, device, NumberFormat.BF16, REACH)
    assert product(2050, 256, 8192, 1, device, NumberFormat.BF16, REACH) > 1.1 * wave


def test_collectives_of_one_domain_are_a_ring() -> None:
    """(n−1)/n of the bytes over the peer link, twice that for an all-reduce."""
    for n in (2, 4, 8):
        share = (n - 1) / n * 1e9 / H100.peer_bandwidth
        assert all_gather(1e9, Group(n), CLUSTER, IDEAL) == pytest.approx(share)
        assert all_reduce(1e9, Group(n), CLUSTER, IDEAL) == pytest.approx(2 * share)
        assert all_to_all(1e9, Group(n), CLUSTER, IDEAL) == pytest.approx(share)


def test_strided_groups_have_one_network_card_each() -> None:
    """Of 16 ranks in two nodes, eight share the cards of a node; with stride 8 each has its own."""
    card = CLUSTER.network.bandwidth
    strided = all_gather(1e9, Group(16, 8), CLUSTER, IDEAL)
    assert strided == pytest.approx(15 / 16 * 1e9 / card)
    four = all_gather(1e9, Group(16, 2), CLUSTER, IDEAL)
    assert four == pytest.approx(15 / 16 * 1e9 / (4 * card))
    assert all_gather(1e9, Group(16), CLUSTER, IDEAL) <= four
    far = 8 / 16 * 1e9 / card
    assert all_to_all(1e9, Group(16), CLUSTER, IDEAL) == pytest.approx(far)


def test_links_above_leaf_switches_are_shared_by_what_crosses_them() -> None:
    """Four nodes below a switch, with a quarter of the bandwidth above: 8 of 32 cards' worth."""
    leaves = replace(CLUSTER, network=replace(CLUSTER.network, leaf=32, oversubscription=4.0))
    card = CLUSTER.network.bandwidth
    # Groups of one rank per leaf all cross: a quarter for each. Of rings with four members below
    # each switch, a quarter of the bytes in and out of a switch's cards crosses, and fits.
    for stride, share in ((32, 0.25), (16, 0.5), (8, 1.0)):
        group = Group(128 // stride, stride)
        part = (group.size - 1) / group.size * 1e9
        assert all_gather(1e9, group, leaves, IDEAL) == pytest.approx(part / (share * card))
    # To 96 of 128 ranks behind other switches; 32 cards send it through 8 cards' worth of links.
    assert all_to_all(1e9, Group(128), leaves, IDEAL) == pytest.approx(96 / 128 * 4e9 / card)
    assert all_to_all(1e9, Group(32), leaves, IDEAL) == all_to_all(1e9, Group(32), CLUSTER, IDEAL)
    near, far = (message(1e9, stride, leaves, IDEAL) for stride in (8, 32))
    assert far == pytest.approx(4 * near)


def test_small_all_reduces_take_a_tree() -> None:
    """Whose steps grow with the logarithm of the nodes, and not with their number."""
    links = replace(IDEAL, network_latency=1e-5)
    few, many = (all_reduce(8.0, Group(n, 8), CLUSTER, links) for n in (4, 16))
    assert many / few == pytest.approx(2, rel=0.01)


def test_groups_of_one_and_nothing_to_send_are_free() -> None:
    """No collective runs then."""
    for of in (all_gather, all_reduce, all_to_all):
        assert of(1e9, Group(1), CLUSTER, LinkEfficiency()) == 0.0
        assert of(0.0, Group(8), CLUSTER, LinkEfficiency()) == 0.0
    assert message(0.0, 8, CLUSTER, LinkEfficiency()) == 0.0
    assert message(1e6, 8, CLUSTER, LinkEfficiency()) > message(1e6, 1, CLUSTER, LinkEfficiency())


def test_tables_are_shares_of_what_the_sheet_promises() -> None:
    """No table reaches more than a peak or a bandwidth, and each names the rows behind it."""
    for table in calibrations().values():
        kernels, links = table.kernels, table.links
        shares = (
            kernels.product, kernels.product8, kernels.product4, kernels.memory, kernels.attention,
            kernels.attention_backward, links.peer, links.network, table.hidden,
            table.tensor_hidden,
        )  # fmt: skip
        assert all(0 < share <= 1 for share in shares), table.name
        assert table.fitted, table.name
        measured = "gpu_kernels.csv" in table.fitted
        assert table.rows or measured or table.fitted.startswith("not fitted:"), table.name


def test_what_stands_in_for_a_table_says_so() -> None:
    """Same device first, then the same software elsewhere."""
    assert calibration("h100", Software.MEGATRON).name == "h100/megatron"
    assert calibration("b200", "torchtitan").name == "b200/torchtitan by b200/megatron"
    assert calibration("mi300x", "fsdp").name == "mi300x/fsdp by mi300x/megatron"
    assert calibration("a100", "torchtitan").name == "a100/torchtitan by a100/fsdp"
    assert calibration("tpu", "fsdp").name == "tpu/fsdp by h100/fsdp"
    assert Calibration().name == "default"
