"""Bytes of a rank by term: against torch's own tracker, against schedules, and by their rules."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from project import ROOT

from stagecut.instances.costs.activations import kept, kept_by_module
from stagecut.instances.costs.description import Attention, Block, Experts, FeedForward
from stagecut.instances.costs.description import ModelDescription as Model
from stagecut.instances.costs.layout import RECIPES, Layout, Recompute, Software
from stagecut.instances.costs.memory import (
    RankStages,
    block_held,
    passes_in_flight,
    peak_memory,
    rank_held,
    rank_memory,
    stage_held,
)
from stagecut.instances.costs.stages import host_weights
from stagecut.instances.costs.traffic import collectives

DENSE = Block(Attention(16, 4, 64), feed_forward=FeedForward(2816))
SPARSE = replace(DENSE, feed_forward=None, experts=Experts(8, 2, 1024, shared_width=1024))
MODEL = Model("dense", 1024, 32000, (DENSE,) * 8)
PLAIN = Layout(data=4, global_batch=32, sequence=1024)


def _load() -> Any:
    name = "memory_against_torch"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind"), [("mixtral", "fsdp"), ("gpt", "tensor")])
def test_peak_and_collectives_are_those_of_torch(name: str, kind: str) -> None:
    torch = _load()
    ((model, layout),) = [(m, lay) for n, k, m, lay in torch.cases() if (n, k) == (name, kind)]
    model = replace(model, blocks=model.blocks[:2])
    found, said = torch.track(model, layout), torch.predicted(model, layout)
    assert said.allocated == pytest.approx(found.total, rel=0.03)
    assert said.optimizer == pytest.approx(found.optimizer, rel=0.003)
    crossed = {kind: (count, found.sizes[kind]) for kind, count in found.counts.items()}
    assert crossed == torch.traffic(model, layout)


def order(schedule: str, p: int, chunks: int, m: int, rank: int) -> list[tuple[bool, int]]:
    """Forward or backward, and stage, of a rank's passes in Megatron's orders."""
    if schedule == "1f1b":
        ahead = min(p - rank - 1, m)
        forward, backward = [(True, rank)] * m, [(False, rank)] * m
    else:
        total = m * chunks
        ahead = min(2 * (p - rank - 1) + (chunks - 1) * p, total)
        turn = [n // p % chunks for n in range(total)]
        forward = [(True, rank + p * c) for c in turn]
        backward = [(False, rank + p * (chunks - 1 - c)) for c in turn]
    passes = forward[:ahead]
    for n in range(len(backward)):
        passes += forward[ahead + n : ahead + n + 1] + backward[n : n + 1]
    return passes


@pytest.mark.parametrize("m", [2, 4, 8, 16])
@pytest.mark.parametrize(("p", "chunks"), [(2, 1), (4, 1), (2, 3), (4, 2)])
def test_passes_in_flight_are_those_of_the_schedule(p: int, chunks: int, m: int) -> None:
    if chunks > 1 and m % p:
        pytest.skip("interleaved schedules take whole rounds")
    schedule = "1f1b" if chunks == 1 else "interleaved"
    layout = Layout(pipeline=p, chunks=chunks, global_batch=m, schedule=schedule)
    for rank in range(p):
        flying: Counter[int] = Counter()
        most: list[int] = []
        for forward, stage in order(schedule, p, chunks, m, rank):
            flying[stage] += 1 if forward else -1
            most.append(sum(flying.values()))
        for held in passes_in_flight(layout, rank):
            assert sum(held.values()) == max(most)


def test_zero_bubble_schedules_keep_as_many_on_every_rank() -> None:
    for schedule, many in (("zb-h1", 4), ("zb-h2", 7)):
        layout = Layout(pipeline=4, global_batch=16, schedule=schedule)
        held = [sum(passes_in_flight(layout, rank)[0].values()) for rank in range(4)]
        assert held == [many] * 4


def test_a_layer_keeps_what_korthikanti_counts() -> None:
    # 16-bit GPT with dropout: sbh (34 + 5as/h), and divided by t with sequence parallelism.
    heads, hidden, sequence, batch = 32, 4096, 2048, 3
    block = Block(
        Attention(heads, heads, hidden // heads),
        feed_forward=FeedForward(4 * hidden, gated=False),
        norm="layer",
        dropout=True,
    )
    unit = sequence * batch * hidden
    layout = Layout(microbatch=batch, sequence=sequence, fused_attention=False)
    statistics = 16 * sequence * batch
    whole = unit * (34 + 5 * heads * sequence / hidden)
    assert kept(block, hidden, layout) == pytest.approx(whole + statistics)
    divided = replace(layout, tensor=8, sequence_parallel=True)
    assert kept(block, hidden, divided) == pytest.approx((whole + statistics) / 8)
    tensor = replace(layout, tensor=8)
    expected = unit * (10 + 24 / 8 + 5 * heads * sequence / (hidden * 8))
    assert kept(block, hidden, tensor) == pytest.approx(expected + statistics)
    full = replace(layout, recompute=frozenset({Recompute.FULL}))
    assert kept(block, hidden, full) == 2 * unit
    selective = replace(divided, recompute=frozenset({Recompute.CORE_ATTENTION}))
    assert kept(block, hidden, selective) == pytest.approx((34 * unit + statistics) / 8)


@pytest.mark.parametrize("module", list(Recompute))
@pytest.mark.parametrize("block", [DENSE, SPARSE])
@pytest.mark.parametrize("software", list(Software))
def test_recomputation_never_keeps_more(
    module: Recompute, block: Block, software: Software
) -> None:
    layout = replace(PLAIN, software=software)
    again = replace(layout, recompute=frozenset({module}))
    assert 0 < kept(block, 1024, again) <= kept(block, 1024, layout)
    assert kept(block, 1024, layout) == pytest.approx(
        sum(kept_by_module(block, 1024, layout).values())
    )


@pytest.mark.parametrize("blocks", [(DENSE,) * 8, (DENSE, *(SPARSE,) * 7)])
@pytest.mark.parametrize("tied", [False, True])
def test_ranks_hold_all_weights_once(blocks: tuple[Block, ...], tied: bool) -> None:
    model = Model("any", 1024, 32000, blocks, tied=tied)
    layout = Layout(tensor=2, pipeline=2, chunks=2, data=4, expert=8, global_batch=8)
    stages = RankStages.of(model, layout)
    by_type = [block_held(block, 1024, layout) for block in model.layer_types]
    held = [stage_held(model, layout, k, own, by_type) for k, own in enumerate(stages.stages)]
    copied = 32000 * 1024 if tied else 0  # the head's copy of the embedding
    replicated = sum(block_held(block, 1024, layout).shared for block in blocks)
    routed = sum(one.routed for one in held) * 8
    assert routed == sum(block.routed_parameters(1024) for block in blocks)
    shared = sum(one.shared for one in held)
    ends = 2 * 32000 * 1024 / 2 + 1024
    assert shared == pytest.approx(replicated + ends)
    whole = Layout(global_batch=1)
    alone = sum(block_held(block, 1024, whole).shared for block in blocks)
    assert alone + routed + 32000 * 1024 * 2 - copied + 1024 == model.parameters


@pytest.mark.parametrize("software", [Software.MEGATRON, Software.TORCHTITAN])
def test_what_is_divided_becomes_less(software: Software) -> None:
    layout = replace(PLAIN, software=software, recipe=RECIPES["fsdp-bf16"])
    by_zero = [rank_memory(MODEL, replace(layout, zero=zero)) for zero in range(4)]
    assert by_zero[1].optimizer == by_zero[0].optimizer / 4
    assert by_zero[2].gradients <= by_zero[1].gradients
    assert by_zero[3].parameters == by_zero[0].parameters / 4
    assert by_zero[3].gathered > 0
    half = rank_memory(MODEL, replace(layout, zero=1, shard_group=2))
    assert half.optimizer == by_zero[0].optimizer / 2
    saved = rank_memory(MODEL, replace(layout, offload_optimizer=0.5))
    assert saved.optimizer == by_zero[0].optimizer / 2
    for zero in range(4):  # what is moved is what the device does not hold
        away = replace(layout, zero=zero, offload_weights=1.0)
        assert rank_memory(MODEL, away).parameters == 0
        assert host_weights(away)[0] * MODEL.parameters == by_zero[zero].parameters


def test_the_fullest_rank_is_the_peak_and_terms_add_up() -> None:
    layout = Layout(pipeline=4, data=2, global_batch=32, sequence=4096)
    ranks = [rank_memory(MODEL, layout, rank) for rank in range(4)]
    assert peak_memory(MODEL, layout) in ranks
    assert peak_memory(MODEL, layout).needed == max(rank.needed for rank in ranks)
    for rank in ranks:
        assert rank.allocated < rank.reserved < rank.held
        assert rank.needed == rank.held - rank.cached


def test_a_rank_that_recomputes_less_may_need_most() -> None:
    """Although the one before it has the same layers, and more passes in flight."""
    model, again = replace(MODEL, blocks=(DENSE,) * 32), (8, 8, 0, 8)
    layout = Layout(
        pipeline=4,
        global_batch=16,
        sequence=8192,
        recompute=frozenset({Recompute.FULL}),
        recompute_layers=again,
    )
    ranks = [rank_memory(model, layout, rank).needed for rank in range(4)]
    assert peak_memory(model, layout).needed == max(ranks) == ranks[2]


def test_the_first_of_ranks_that_are_alike_needs_most_in_an_interleaved_schedule() -> None:
    """Whatever its chunks keep: then the ranks behind it need not be looked at."""
    random = Random(4)
    for _ in range(200):
        p, chunks = random.randrange(2, 7), random.randrange(2, 6)
        batch = p * random.randrange(1, 4)
        layout = Layout(pipeline=p, chunks=chunks, global_batch=batch, schedule="interleaved")
        kept = [random.random() ** random.choice([1, 8]) for _ in range(chunks)]
        most = []
        for rank in range(p):
            moments = passes_in_flight(layout, rank)
            most.append(max(sum(map(float.__mul__, kept, map(float, m.values()))) for m in moments))
        assert most == sorted(most, reverse=True)


def test_no_rank_needs_more_than_the_peak() -> None:
    random = Random(3)
    models = [MODEL, Model("sparse", 1024, 32000, (DENSE,) + (SPARSE,) * 7, mtp=(SPARSE,))]
    for _ in range(100):
        p = random.choice([1, 2, 4])
        chunks = random.choice([1, 2]) if p > 1 else 1
        schedule = "interleaved" if chunks > 1 else random.choice(["1f1b", "gpipe", "zb-h1"])
        layout = Layout(
            tensor=random.choice([1, 2]),
            pipeline=p,
            chunks=chunks,
            data=4,
            expert=random.choice([1, 4]),
            zero=random.randrange(4),
            global_batch=4 * random.choice([4, 16]),
            sequence=1024,
            schedule=schedule,
            recompute=frozenset(random.sample(list(Recompute), random.randrange(3))),
            recompute_layers=random.choice(
                [None, 1, tuple(random.randrange(3) for _ in range(p * chunks))]
            ),
            software=random.choice(list(Software)),
            fused_attention=random.random() < 0.7,
        )
        model = random.choice(models)
        ranks = [rank_memory(model, layout, rank) for rank in range(p)]
        peak = peak_memory(model, layout)
        assert peak.needed == pytest.approx(max(rank.needed for rank in ranks))
        assert all(value >= 0 for rank in ranks for value in vars(rank).values())


def test_norms_without_a_kernel_keep_32_bit_copies() -> None:
    plain = kept(DENSE, 1024, PLAIN)
    copies = 2 * PLAIN.tokens * 1024 * (4 + 4 + 2)
    assert kept(DENSE, 1024, replace(PLAIN, fused_norms=False)) == plain + copies


def test_collectives_by_axis() -> None:
    layout = Layout(
        tensor=2, sequence_parallel=True, pipeline=2, data=2, expert=4, zero=1,
        global_batch=8, sequence=1024,
    )  # fmt: skip
    model = Model("sparse", 1024, 32000, (DENSE,) * 2 + (SPARSE,) * 2)
    found = {(one.axis, one.kind): one for one in collectives(model, layout, 1)}
    # Two blocks of two regions and the head, four microbatches; Megatron gathers inputs again.
    assert found["tensor", "all-gather"].count == 4 * (2 * (2 * 2 + 2) + 1)
    assert found["expert", "all-to-all"].count == 4 * 2 * 4
    assert found["pipeline", "message"].count == 4
    held = rank_held(model, layout, 1, RankStages.of(model, layout))
    assert found["data", "all-gather"].size == 2 * held.shared
    message = found["pipeline", "message"]
    assert message.size == message.count * 2 * 1024 / 2 * 1024


@pytest.mark.parametrize(("schedule", "moment"), [("zb-v", (8, 0)), ("interleaved", (5, 0))])
def test_the_loss_is_there_while_the_last_stage_has_a_microbatch(
    schedule: str, moment: tuple[int, int]
) -> None:
    """At another moment that rank has more activations and no loss; one that is small adds none."""
    model = replace(MODEL, blocks=MODEL.blocks[:1] * 16)
    layout = replace(PLAIN, pipeline=4, chunks=2, schedule=schedule, data=1, global_batch=32)  # type: ignore[arg-type]
    rank = layout.stage_ranks[-1]
    layers = [2 + (s == layout.rank_stages(rank)[0]) - (s == 7) for s in range(8)]
    layout = replace(layout, stage_layers=tuple(layers))
    assert moment in [tuple(held.values()) for held in passes_in_flight(layout, rank)]
    small, large = (
        rank_memory(replace(model, vocabulary=words), layout, rank) for words in (256, 65536)
    )
    assert small.logits == 0 < large.logits
    assert large.activations < small.activations
