"""Training jobs by layouts, on FSDP2, DTensor and torch's schedules, equal to one process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stagecut import InputError, Layout

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from job_cases import (  # noqa: E402
    BATCH,
    PAIRS,
    PIPELINE,
    PLACED,
    PLAN,
    RESUMED,
    SHARDED,
    TOKENS,
    alone,
    attended,
    collectives,
    evaluated,
    frozen,
    frozen_modes,
    groups,
    ignoring,
    job_rank,
    killed,
    make_transformer,
    norm_of_head_before_embedding,
    of_two_microbatches,
    partly_ignored,
    random_numbers_kept,
    resumed,
    resumed_by_another_batch,
    run_rank,
    unlike,
)
from ranks import DEVICE, launched, on_ranks  # noqa: E402

from stagecut.instances.costs.activations import mask_bytes  # noqa: E402
from stagecut.instances.costs.description import Attention  # noqa: E402
from stagecut.instances.costs.layout import axis_stride  # noqa: E402
from stagecut.runtime.execution.checkpoint_folder import checkpoints  # noqa: E402
from stagecut.runtime.execution.guard.identity import layout_hash  # noqa: E402
from stagecut.runtime.execution.job.parallelize import (  # noqa: E402
    ParallelizePlan,
    check_patterns,
    check_runs,
    make_stage,
    materialize,
    stage_modules,
)
from stagecut.runtime.execution.job.running import loss_alone, stage_ranks  # noqa: E402

#: Layout, options, and forward passes of blocks in a step of rank 0.
Case = tuple[dict[str, Any], dict[str, Any], int]

TWO: dict[str, Case] = {
    "replicas": ({"data": 2}, {}, 16),
    "zero 1": ({"data": 2, "zero": 1, "recompute": "full", "recompute_layers": 3}, {}, 28),
    "zero 2": ({"data": 2, "zero": 2, "microbatch": 2}, {"tied": True}, 8),
    "zero 3": ({"data": 2, "zero": 3, "microbatch": 2, "recompute": "full"}, {"tied": True}, 16),
    "tensor": ({"tensor": 2, "microbatch": 4}, {}, 8),
    "sequence": (
        {"tensor": 2, "sequence_parallel": True, "microbatch": 4, "recompute": "op"},
        {"tied": True},
        16,
    ),
    "keys and values gathered": (
        {"context": 2, "context_kind": "all-gather", "zero": 3, "microbatch": 4},
        {"placed": True},
        8,
    ),
    "keys and values around a ring": (
        {"context": 2, "context_kind": "ring", "zero": 3, "microbatch": 4, "recompute": "op"},
        {"placed": True},
        16,
    ),
    "experts": (
        {"data": 2, "expert": 2, "zero": 2, "microbatch": 2, "recompute": "full"},
        {"experts": True},
        16,
    ),
    "1f1b, uneven": ({"pipeline": 2, "microbatch": 2, "stage_layers": (1, 3)}, {"tied": True}, 4),
    "1f1b of one microbatch": ({"pipeline": 2, "microbatch": 8}, {"tied": True}, 2),
    "zb-h1": ({"pipeline": 2, "microbatch": 2, "schedule": "zb-h1", "recompute": "mlp"}, {}, 8),
    "interleaved": (
        {"pipeline": 2, "chunks": 2, "microbatch": 2, "schedule": "interleaved"}, {}, 8
    ),
    "dualpipe-v": (
        {"pipeline": 2, "chunks": 2, "microbatch": 2, "zero": 3, "schedule": "dualpipe-v",
         "recompute": "op"},  # once for each half of a backward pass that is split
        {},
        26,
    ),
}  # fmt: skip
FOUR: dict[str, Case] = {
    "fsdp, tensor": (
        {"data": 2, "tensor": 2, "sequence_parallel": True, "zero": 3, "microbatch": 2},
        {"tied": True},
        8,
    ),
    "pipeline, fsdp": ({"pipeline": 2, "data": 2, "zero": 3, "microbatch": 2}, {"tied": True}, 4),
    "pipeline, tensor, recomputation by layer": (
        {"pipeline": 2, "tensor": 2, "sequence_parallel": True, "microbatch": 2,
         "recompute": "full", "recompute_layers": (1, 0)},
        {"tied": True},
        12,
    ),
    "zb-v, tensor": (
        {"pipeline": 2, "tensor": 2, "chunks": 2, "microbatch": 2, "schedule": "zb-v"}, {}, 8
    ),
    "heads exchanged, pipeline": (
        {"context": 2, "context_kind": "all-to-all", "pipeline": 2, "microbatch": 4,
         "recompute": "full", "stage_layers": (4, 0)},  # a stage without attention
        {"placed": True},
        16,
    ),
    "keys and values gathered, tensor": (
        {"context": 2, "context_kind": "all-gather", "tensor": 2, "sequence_parallel": True,
         "microbatch": 4},
        {"tied": True},
        8,
    ),
    "experts, fsdp": (
        {"data": 4, "expert": 2, "zero": 3, "microbatch": 2}, {"experts": True}, 4
    ),
    "experts, pipeline": (
        {"data": 2, "expert": 2, "pipeline": 2, "microbatch": 2}, {"experts": True}, 4
    ),
    "replicated shards": ({"data": 4, "zero": 3, "shard_group": 2, "microbatch": 2}, {}, 4),
}  # fmt: skip

#: Of four processes what `make test` leaves out: `test_job_models.py` has such layouts.
LEFT_OUT = ("fsdp, tensor", "pipeline, fsdp", "zb-v, tensor", "keys and values gathered, tensor",
            "experts, pipeline")  # fmt: skip


def cases_of(world: int, left_out: bool) -> dict[str, Case]:
    """Return the cases of so many processes, those that `make test` leaves out or the others."""
    cases = TWO if world == 2 else FOUR
    return {name: case for name, case in cases.items() if (name in LEFT_OUT) == left_out}


@cache
def ran(world: int, left_out: bool) -> list[list[dict[str, Any]]]:
    """Run these cases; return what each process has of each."""
    cases = [(fields, options) for fields, options, _ in cases_of(world, left_out).values()]
    done: list[list[dict[str, Any]]] = on_ranks(world, job_rank, cases)
    return done


@cache
def expected(tied: bool, placed: bool = False, experts: bool = False) -> dict[str, Any]:
    return alone(tied, placed, experts)


@pytest.mark.parametrize(
    ("world", "name"),
    [
        pytest.param(world, name, marks=pytest.mark.slow if name in LEFT_OUT else ())
        for world, cases in ((2, TWO), (4, FOUR))
        for name in cases
    ],
    ids=str,
)
def test_it_trains_as_one_process_does(world: int, name: str) -> None:
    cases = cases_of(world, name in LEFT_OUT)
    _, options, passes = cases[name]
    wanted = expected(*(options.get(name, False) for name in ("tied", "placed", "experts")))
    found = [rank[list(cases).index(name)] for rank in ran(world, name in LEFT_OUT)]
    names: set[str] = set()
    for rank in found:
        assert rank["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
        assert rank["norms"] == pytest.approx(wanted["norms"], rel=1e-5)
        for key, gradient in rank["gradients"].items():
            exact = wanted["gradients"][key]
            assert (gradient - exact).norm() <= 1e-5 * exact.norm(), key
        names |= set(rank["gradients"])
    assert names == set(wanted["gradients"])
    assert found[0]["passes"] == passes


def test_tensor_parallelism_moves_what_megatron_does() -> None:
    plain, divided = on_ranks(
        2, collectives, [{"tensor": 2}, {"tensor": 2, "sequence_parallel": True}]
    )[0]
    # two per block and pass, the embedding's forward and the head's backward pass; the loss has 3
    ends = 2 * 2 * 4 + 2
    assert plain == {"all_reduce": ends + 3}
    assert divided == {
        "all_gather_into_tensor": ends, "reduce_scatter_tensor": ends, "all_reduce": 3,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["ring", "all-gather"])
def test_attention_to_parts_is_that_to_whole_sequences(kind: str) -> None:
    cases = [(True, 4, 6), (True, 2, 6), (True, 2, 4), (False, 4, 6), (False, 1, 3)]
    layout = Layout(context=4, context_kind=kind, sequence=16, software="stagecut", recipe="fp32")
    for of_rank in on_ranks(4, attended, kind, cases):
        assert len(of_rank) == len(cases)
        for (causal, heads, width), (error, masks) in zip(cases, of_rank, strict=True):
            assert error < (1e-5 if DEVICE == "cpu" else 3e-2)
            said = mask_bytes(Attention(4, heads, 6, causal=causal), layout)
            if width == 6:  # else the CPU's kernel keeps scores
                assert 4 * sum(masks) == said  # of two calls that have the same


#: Pairs that `make test` leaves out: both layouts of each are in another pair, too.
LEFT_OUT_PAIRS = ("data to tensor", "experts to pipeline", "data to context")


@pytest.mark.parametrize("left_out", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_checkpoint_goes_on_under_another_layout(left_out: bool, tmp_path: Path) -> None:
    pairs = {name: pair for name, pair in PAIRS.items() if (name in LEFT_OUT_PAIRS) == left_out}
    layers = {name: 4 if "chunks" in pair[1][0] else 2 for name, pair in pairs.items()}
    asked = [
        [
            (of_two_microbatches(fields), {**options, "layers": layers[name]})
            for fields, options in pair
        ]
        for name, pair in pairs.items()
    ]
    found = on_ranks(2, resumed, asked, str(tmp_path))[0]
    for (name, (_, (_, options))), case in zip(pairs.items(), found, strict=True):
        assert case["same"], name
        model = [options.get(key, False) for key in ("tied", "placed", "experts")]
        losses = alone(*model, steps=RESUMED, layers=layers[name])["losses"]
        assert case["losses"] == pytest.approx(losses[1:], rel=1e-6), name
    if "the same" in pairs:
        whole = ran_whole()
        assert found[list(pairs).index("the same")]["losses"][:1] == whole[1:]


#: Layouts whose evaluation is compared, by schedule; of the last, backward passes gather weights.
EVALUATED: dict[str, dict[str, Any]] = {
    "1f1b": PIPELINE,
    "zb-v": {**PIPELINE, "chunks": 2, "schedule": "zb-v"},
    "dualpipe-v": {**PIPELINE, "chunks": 2, "schedule": "dualpipe-v"},
    "interleaved": {
        "pipeline": 2, "chunks": 4, "data": 2, "zero": 3, "microbatch": 1,
        "schedule": "interleaved",
    },
}  # fmt: skip


@pytest.mark.parametrize("schedule", EVALUATED)
def test_a_batch_is_evaluated_by_forward_passes_alone(schedule: str) -> None:
    """Also where a rank has two stages that follow each other; the step behind it is the same."""
    fields = EVALUATED[schedule]
    for first, again in on_ranks(Layout(**fields).devices, evaluated, fields):
        assert first[0] == pytest.approx(first[1], rel=1e-6)
        assert again == pytest.approx(first, rel=1e-6)


#: Layouts that divide microbatches, sequences, words, or layers.
IGNORING: tuple[dict[str, Any], ...] = (
    {"data": 2, "zero": 2, "microbatch": 2},
    {"context": 2, "context_kind": "all-gather"},
    {"tensor": 2},
    {"pipeline": 2},
)


def test_ignored_targets_count_for_no_layout() -> None:
    """Microbatches and parts of sequences have unequal numbers of the others, or none."""
    x, y = partly_ignored()
    model = make_transformer()
    model.placed = True
    loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    wanted = [loss.item(), loss.item(), norm.item()]
    assert loss_alone(make_transformer(), PLACED, x, y) == pytest.approx(loss.item(), rel=1e-5)
    for of_rank in on_ranks(2, ignoring, IGNORING):
        for found in of_rank:
            assert found == pytest.approx(wanted, rel=1e-5)


def test_weights_without_gradients_stay() -> None:
    for found in on_ranks(2, frozen, {"tensor": 2, "sequence_parallel": True}):
        assert all(found)


def ran_whole() -> tuple[float, ...]:
    """Return the losses of the last pair's layout without an interruption."""
    losses: tuple[float, ...] = on_ranks(2, job_rank, [(SHARDED, {"layers": 2})])[0][0]["losses"]
    return losses


def test_a_job_runs_under_a_launcher_and_is_held_to_one_process() -> None:
    done, codes = launched(2, run_rank, 2)
    assert codes == [0, 0]
    placed = expected(False, True)["losses"]
    for seen, losses in done:
        assert seen == pytest.approx(placed[0], rel=1e-5)
        assert losses[0] == pytest.approx(seen, rel=1e-5)
    assert done[0] == done[1]


def test_another_batch_goes_on_behind_the_tokens_that_were_taken(tmp_path: Path) -> None:
    """Three batches of eight sequences are six of four; two more make no whole number of twelve."""
    ((taken, why),) = on_ranks(1, resumed_by_another_batch, str(tmp_path))
    assert taken == [0, 1, 2, *range(8)]
    assert "no whole number of batches of 96;" in why


def test_random_numbers_go_on_under_the_same_layout(tmp_path: Path) -> None:
    (found,) = on_ranks(1, random_numbers_kept, str(tmp_path))
    assert found == [True, False]


def test_a_tied_weight_counts_once_whichever_name_is_first() -> None:
    (norm,) = on_ranks(1, norm_of_head_before_embedding)
    assert norm == pytest.approx(expected(True, False)["norms"][0], rel=1e-5)


def test_a_block_that_is_frozen_in_another_mode_stays_so() -> None:
    assert on_ranks(1, frozen_modes) == [[True, False, True, True]]


def test_another_number_of_processes_is_refused() -> None:
    done, _ = launched(2, run_rank, 4)
    assert "processes: 2; the layout is for 4 devices: start 4" in done


def test_replicas_of_unlike_weights_are_refused() -> None:
    """They would train apart, with losses that look right."""
    done, _ = launched(2, run_rank, 2, False)
    assert any("weights: rank 1 has others than rank 0" in str(found) for found in done)


def test_ranks_of_unlike_batches_are_refused() -> None:
    done, _ = launched(2, run_rank, 2, True, False)
    assert any("tokens: rank 1 has others than rank 0" in str(found) for found in done)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("rate", "rank 1 runs another --lr than rank 0"),
        ("device", "rank 1 runs another --device than rank 0"),
        ("seed", "random numbers: rank 1 has others than rank 0; seed all ranks alike"),
    ],
)
def test_ranks_of_unlike_options_are_refused(what: str, message: str) -> None:
    """Of tensor-parallel ranks that drop unlike elements, each would have a hidden state."""
    done, _ = launched(2, unlike, what)
    assert any(message in str(found) for found in done)


def test_all_ranks_end_if_one_is_killed_and_what_was_kept_is_whole(tmp_path: Path) -> None:
    _, codes = launched(2, killed, str(tmp_path))
    assert 0 not in codes
    assert [path.name for path in checkpoints(tmp_path)] == [
        "step-00000001", "step-00000002",
    ]  # fmt: skip


#: Layouts on eight devices, in other orders too.
MESHES: tuple[dict[str, Any], ...] = (
    {"tensor": 2, "pipeline": 2, "data": 2},
    {"tensor": 2, "pipeline": 2, "data": 2, "order": ("tensor", "context", "pipeline", "data")},
    {"data": 4, "pipeline": 2, "order": ("context", "data", "pipeline", "tensor")},
    {"context": 2, "data": 2, "tensor": 2, "context_kind": "all-gather"},
    {"data": 8, "expert": 4},
    {"tensor": 2, "data": 4, "expert": 4, "sequence_parallel": True},
)


def test_groups_of_ranks_are_those_that_the_plan_prices() -> None:
    done, codes = launched(1, groups, MESHES)
    assert codes == [0]
    for fields, found in zip(MESHES, done[0], strict=True):
        layout = Layout(**fields)
        for axis, size in (("tensor", layout.tensor), ("pipeline", layout.pipeline)):
            stride = axis_stride(layout, axis)
            for line in found[axis]:
                assert line == [line[0] + k * stride for k in range(size)]
        divided = [axis for axis in ("context", "data") if getattr(layout, axis) > 1]
        nearest = min((axis_stride(layout, axis) for axis in divided), default=1)
        for line in found["replicas"]:
            assert sorted(line) == [min(line) + k * nearest for k in range(layout.replicas)]
        for axis, stride in (("context", nearest), ("expert", 1)):  # experts go over tensor, too
            size = getattr(layout, axis)
            assert found.get(axis, [[0]]) == [[k * stride for k in range(size)]]


def test_bfloat16_is_computed_with_and_32_bits_are_kept() -> None:
    (found,) = on_ranks(1, job_rank, [({"recipe": "fsdp-bf16"}, {}), ({}, {})])
    exact, rounded = found[1], found[0]
    assert rounded["losses"] == pytest.approx(exact["losses"], rel=1e-2)
    assert rounded["losses"] != exact["losses"]
    assert all(g.dtype == torch.float32 for g in rounded["gradients"].values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": 3}, "sequence: 8 tokens in 6 parts; jobs run with multiples of 6 here"),
        ({"expert": 2, "data": 3}, "expert: 2 x expert_tensor 1 does not divide the 3 devices"),
        ({"shard_group": 2, "data": 3, "zero": 1}, "shard_group: 2 does not divide the 3 ranks"),
        ({"order": ("data", "pipeline")}, "name each of tensor, context, data, pipeline once"),
        ({"expert": 2, "data": 2, "tensor": 2}, "expert: 2 beside tensor 2; jobs run with it with"),
        ({"expert": 2, "data": 2, "expert_capacity": 1.5}, "expert_capacity: 1.5"),
        ({"expert": 2, "data": 2, "dispatcher": "hierarchical"}, "dispatcher: hierarchical"),
        ({"offload_optimizer": 0.5}, "offload_optimizer: 0.5"),
        ({"pipeline": 2, "recompute_layers": (1,)}, "recompute_layers: 1 counts for 2 stages"),
        ({"microbatch": 3}, "global_batch: 8 is not divided by microbatch 3"),
        ({"recipe": "megatron-fp8"}, "recipe: products in fp8; jobs run with bf16, fp32"),
        ({"graphs": "iteration"}, "graphs: iteration; jobs run with none"),
        ({"recompute": ("full", "mlp")}, "recompute: full, mlp; jobs run with full, or modules"),
    ],
    ids=str,
)
def test_what_does_not_run_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_runs(Layout(**{"global_batch": BATCH, "sequence": TOKENS, **fields}))


def test_patterns_must_match_what_is_divided() -> None:
    for layout, axis in ((Layout(tensor=2), "tensor"), (Layout(expert=2), "expert")):
        with pytest.raises(InputError, match=f"{axis}: no module"):
            check_patterns(make_transformer(), ParallelizePlan(), layout)


@pytest.mark.parametrize(
    ("embedding", "blocks"), [("positions", "layers"), ("place", "blocks"), ("call", "order")]
)
def test_modules_may_have_any_name(embedding: str, blocks: str) -> None:
    model = torch.nn.Module()
    model.add_module(embedding, torch.nn.Embedding(8, 4))
    model.add_module(blocks, torch.nn.ModuleList([torch.nn.Linear(4, 4)]))
    model.norm, model.head = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8)
    plan = ParallelizePlan(before=(embedding,), blocks=blocks)
    tokens = torch.arange(8).view(2, 4)
    inner = model.get_submodule(blocks)[0](model.get_submodule(embedding)(tokens))
    logits = model.head(model.norm(inner))
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    assert loss_alone(model, plan, tokens, tokens) == pytest.approx(wanted.item())


def test_tied_weights_are_divided_everywhere_or_nowhere() -> None:
    plan, model = replace(PLAN, colwise=PLAN.colwise[:-1]), make_transformer(tied=True)
    check_patterns(model, plan, Layout())
    with pytest.raises(InputError, match="head: it has the weight of embedding, which the plan"):
        check_patterns(model, plan, Layout(tensor=2))


def test_weights_of_several_blocks_are_not_divided() -> None:
    model = make_transformer(tied=True)
    check_patterns(model, PLAN, Layout(data=2))
    model.layers[2].mlp = model.layers[0].mlp
    check_patterns(model, PLAN, Layout(pipeline=2))
    with pytest.raises(InputError, match=r"layers.2.mlp.gate.weight: another block has its weight"):
        check_patterns(model, PLAN, Layout(data=2))


def test_buffers_of_a_model_on_the_meta_device_keep_their_numbers() -> None:
    plan = replace(PLAN, initialize=lambda _, parameter: parameter.zero_())
    for device in ("cpu", "meta"):
        with torch.device("meta"):
            model = make_transformer()
        model.norm.register_buffer("scale", torch.full((2,), 3.0, device=device))
        (names,) = stage_modules(model, plan, Layout())
        stage = make_stage(model, plan, names)
        if device == "meta":
            with pytest.raises(InputError, match=r"norm.scale: a buffer on the meta device"):
                materialize(stage, plan, (), torch.device("cpu"))
            continue
        materialize(stage, plan, (), torch.device("cpu"))
        assert stage.norm.scale.tolist() == [3.0, 3.0]
        assert not any(p.is_meta or p.any() for p in stage.parameters())


def test_a_layout_has_one_hash_in_all_processes() -> None:
    """Sets of names have another order in each, by which ranks were told apart."""
    names = ("mlp", "layernorm", "moe", "moe_act", "core_attn", "mla_up_proj", "shared_experts")
    code = (
        "from stagecut import Layout\n"
        "from stagecut.runtime.execution.guard.identity import layout_hash\n"
        f"print(layout_hash(Layout(recompute=frozenset({names}))))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "random"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert other.stdout.strip() == layout_hash(Layout(recompute=frozenset(names)))


def test_mistakes_in_the_names_of_modules_are_refused() -> None:
    model = make_transformer()
    misspelt = replace(PLAN, rowwise=(*PLAN.rowwise, "layers.*.attention.output"))
    with pytest.raises(InputError, match=r"rowwise: no module of .* layers.\*.attention.output"):
        check_patterns(model, misspelt, Layout())
    for given in ({"after": PLAN.after[:1]}, {"after": PLAN.after[:1], "shared": ("head",)}):
        with pytest.raises(InputError, match=r"head.weight: the plan runs no module with this"):
            stage_modules(model, replace(PLAN, **given), Layout())
    model.embedding.sparse = True
    with pytest.raises(InputError, match="embedding: jobs add up no sparse gradients"):
        check_patterns(model, PLAN, Layout())


def test_schedules_say_where_model_stages_are() -> None:
    layout = Layout(pipeline=3, chunks=2)
    assert stage_ranks("zb-v", layout) == (0, 1, 2, 2, 1, 0)
    assert stage_ranks("interleaved", layout) == (0, 1, 2, 0, 1, 2)
    with pytest.raises(InputError, match="chunks: 2; the schedule 1f1b takes 1"):
        stage_ranks("1f1b", layout)


def test_blocks_must_be_those_that_the_layout_counts() -> None:
    layout = Layout(pipeline=2, stage_layers=(1, 2))
    with pytest.raises(InputError, match="3 layers; the layout has 2 model stages"):
        stage_modules(make_transformer(), PLAN, layout)
