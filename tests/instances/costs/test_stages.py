"""What replicas' traffic adds to passes: what shares its links hides none of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stagecut.instances.costs.calibration import Calibration
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.collectives import Group, LinkEfficiency, UsedLinks, links_of
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layers import LayerPrices
from stagecut.instances.costs.layout import RECIPES, Layout, Overlap
from stagecut.instances.costs.memory import rank_memory
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.costs.stages import (
    StageTime,
    blocked,
    exposed,
    message_time,
    replica_traffic,
    stage_times,
    tied_all_reduce,
)
from stagecut.instances.costs.traffic import collectives
from stagecut.runtime.estimate import iteration_times

CLUSTER = training_cluster("h100:8x8")
TABLE = Calibration()
MIXTRAL = LayerPrices(shipped_model("mixtral-8x7b"), CLUSTER, TABLE)
SHARDED = Layout(data=64, zero=3, global_batch=256, sequence=4096)


def only_stage(layout: Layout) -> StageTime:
    """Return the passes of the one stage without a pipeline."""
    (stage,) = stage_times(layout, MIXTRAL)
    return stage


def test_groups_keep_links_busy_by_where_their_ranks_lie() -> None:
    """In a node, across nodes with several members in each, and with one."""
    assert links_of(Group(8), CLUSTER) == UsedLinks.PEER
    assert links_of(Group(64), CLUSTER) == UsedLinks.PEER | UsedLinks.NETWORK
    assert links_of(Group(8, stride=8), CLUSTER) == UsedLinks.NETWORK
    assert links_of(Group(1), CLUSTER) == UsedLinks.NONE


def test_collectives_block_what_shares_a_link() -> None:
    """Tensor parallelism in whole nodes leaves the network to replicas, in half of them not."""
    llama = LayerPrices(shipped_model("llama3-8b"), CLUSTER, TABLE)
    whole = Layout(tensor=8, data=8, zero=3, global_batch=256)
    assert blocked(whole, llama) == (False, True, True)
    assert blocked(replace(whole, tensor=4, data=16), llama) == (True, True, True)
    assert blocked(replace(whole, data=1, pipeline=8), llama) == (False, False, False)
    assert blocked(whole, MIXTRAL) == (True, True, True)  # experts are not divided by tensor


def on_two_kinds(fast: float, slow: float) -> TrainingCluster:
    """Return an H100 and an A100, whose links to their hosts are as given, in bytes per second."""
    cluster = training_cluster("h100:1x1+a100:1x1,network=25GB/s,latency=8us")
    nodes = tuple(
        replace(one, accelerator=replace(one.accelerator, host_bandwidth=link))
        for one, link in zip(cluster.nodes, (fast, slow), strict=True)
    )
    return replace(cluster, nodes=nodes)


def test_each_kind_of_nodes_has_its_own_host_and_optimizer_step() -> None:
    """A rank's step and waits are those of the nodes that it lies on, the slower where on both."""
    model = shipped_model("llama3.2-1b")
    layout = Layout(pipeline=2, zero=1, global_batch=8, offload_optimizer=1.0)
    whole = {}
    for links in ((5e9, 60e9), (60e9, 5e9)):
        (time,) = iteration_times([layout], LayerPrices(model, on_two_kinds(*links), TABLE))
        recipe = layout.recipe
        sent = recipe.gradient_bytes + recipe.gather_bytes
        sent += 2 * (recipe.master_bytes + recipe.moment_bytes)
        own = [stage.held.shared for stage in time.stages]
        steps = [sent * held / link for held, link in zip(own, links, strict=True)]
        assert time.terms["optimizer"] == pytest.approx(max(steps))
        whole[links] = time.terms["optimizer"]
    assert whole[5e9, 60e9] != whole[60e9, 5e9]
    away = replace(layout, offload_optimizer=0.0, offload_weights=1.0)
    slow_host = stage_times(away, LayerPrices(model, on_two_kinds(60e9, 1e8), TABLE))
    assert slow_host[0].terms["offload"] < 0.1 * slow_host[1].terms["offload"]
    one_rank = replace(away, pipeline=1, data=2)
    (stage,) = stage_times(one_rank, LayerPrices(model, on_two_kinds(1e8, 60e9), TABLE))
    moved = 2 * recipe.weight_bytes * stage.held.shared / 1e8
    assert stage.terms["offload"] == pytest.approx(moved, rel=0.1)


def test_ends_of_a_v_share_a_rank() -> None:
    """A tied embedding needs no all-reduce, and the turn of the V no messages."""
    prices = LayerPrices(shipped_model("llama3.2-1b"), CLUSTER, TABLE)
    line = Layout(pipeline=4, global_batch=16)
    folded = replace(line, schedule="zb-v", chunks=2)
    assert tied_all_reduce(line, prices) > 0 == tied_all_reduce(folded, prices)
    counts = [
        sum(one.count for one in collectives(prices.model, folded, rank) if one.axis == "pipeline")
        for rank in range(4)
    ]
    assert counts == [16 * many for many in (2, 4, 4, 2)]


def test_exposed_traffic_is_what_does_not_fit_and_what_slows() -> None:
    """Convex in the traffic: slowed below, what is too long above, a last piece at least."""
    table = replace(TABLE, hidden=0.9, slowed=0.25)
    assert exposed(0.1, 1.0, 0.0, table) == pytest.approx(0.025)
    assert exposed(2.0, 1.0, 0.0, table) == pytest.approx(1.1)
    assert exposed(0.1, 1.0, 0.08, table) == pytest.approx(0.08)


def test_dispatch_hides_no_gathering_of_weights() -> None:
    """Computation hides traffic as `exposed` says, dispatch of tokens on its links none."""
    for layout in (
        replace(SHARDED, expert=8),
        replace(SHARDED, expert=8, overlap=Overlap(experts=True)),
    ):
        stage, layers = only_stage(layout), MIXTRAL.model.layers
        gather, reduce = replica_traffic(layout, MIXTRAL, stage.held.shared, stage.held.routed)
        plain = only_stage(replace(layout, zero=1))
        ahead = plain.forward - plain.busy[0] - plain.busy[2] - plain.busy[4]
        behind = plain.backward - plain.busy[1] - plain.busy[3] - plain.busy[5]
        assert plain.busy[0] > 0  # eight experts' devices lie in a node
        waits = exposed(gather, ahead, gather / layers, TABLE)
        waits += exposed(gather + reduce, behind, reduce / layers, TABLE)
        assert stage.gathered == pytest.approx(waits)


def test_busy_links_count_what_is_hidden_and_what_runs_again() -> None:
    """Dispatch beside computation keeps links as long; a recomputed layer dispatches twice."""
    plain = only_stage(replace(SHARDED, expert=8, zero=1))
    beside = only_stage(replace(SHARDED, expert=8, zero=1, overlap=Overlap(experts=True)))
    again = only_stage(replace(SHARDED, expert=8, zero=1, recompute=frozenset({"full"})))
    assert beside.busy == plain.busy
    assert beside.terms["experts"] < plain.terms["experts"]
    assert again.busy[1] == pytest.approx(plain.busy[0] + plain.busy[1])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("llama3-8b", 16), ("deepseek-v2-lite", 8), ("gpt2", 4)],  # heads copied, latent, positions
)
def test_traffic_and_optimizer_count_the_parameters_that_memory_has(name: str, tensor: int) -> None:
    """What tensor ranks hold whole, such as norms and copied key heads, is reduced and stepped."""
    model = shipped_model(name)
    layout = Layout(tensor=tensor, pipeline=2, global_batch=8, sequence=1024)
    stages = stage_times(layout, LayerPrices(model, CLUSTER, TABLE))
    for rank, stage in enumerate(stages):
        held = rank_memory(model, layout, rank).parameters / layout.recipe.weight_bytes
        assert stage.held.shared + stage.held.routed == pytest.approx(held)


def test_activations_of_32_bits_take_twice_as_long_on_links() -> None:
    """Tensor-parallel collectives and messages between stages, without latencies."""
    links = LinkEfficiency(peer_latency=0, network_latency=0, start=0, skew=0)
    prices = LayerPrices(shipped_model("gpt2"), CLUSTER, replace(TABLE, links=links, host=0.0))
    half = Layout(tensor=4, pipeline=2, global_batch=8, sequence=1024)
    whole = replace(half, recipe=RECIPES["fp32"])
    assert message_time(whole, prices) == pytest.approx(2 * message_time(half, prices))
    short, long = (stage_times(one, prices)[0].terms["tensor"] for one in (half, whole))
    assert long == pytest.approx(2 * short)
