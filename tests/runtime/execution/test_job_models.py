"""Models built from descriptions train under layouts as one process does."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import stagecut
from stagecut import InputError

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from job_cases import of_two_microbatches  # noqa: E402
from model_cases import MODELS, alone, layouts_of, model_rank  # noqa: E402
from ranks import on_ranks  # noqa: E402

from stagecut.instances.costs.activations import kept_by_module  # noqa: E402
from stagecut.instances.costs.description import Attention, Block, FeedForward  # noqa: E402
from stagecut.runtime.execution.attention import copied_heads  # noqa: E402
from stagecut.runtime.execution.job.transformer import CoreAttention, transformer  # noqa: E402

#: Losses differ from the second step on where the first one's gradients do, and in the third where
#: the optimizer's state does.
STEPS = 3

#: Places of the layouts that `make test` runs of a model on so many processes: each of two
#: processes once, with the model that it may trouble most, and some of four; `test_job_run.py` has
#: the others.
CHOSEN = {
    ("llama", 2): (1, 2, 5, 6),
    ("gpt", 2): (3, 4, 8),  # its weights are tied
    ("mixtral", 2): (0, 1, 4),
    ("deepseek", 2): (3, 6),
    ("llama", 4): (3, 6),
    ("mixtral", 4): (1,),
}


def places(name: str, world: int, chosen: bool) -> list[int]:
    """Return the places of a model's layouts that are chosen, or of the others."""
    mine = CHOSEN.get((name, world), ())
    return [place for place in range(len(layouts_of(name, world))) if (place in mine) == chosen]


@cache
def ran(name: str, world: int, chosen: bool) -> list[dict[int, dict[str, Any]]]:
    """Run a model under such layouts; return what each process has of each, by its place."""
    asked = places(name, world, chosen)
    layouts = [of_two_microbatches(fields) for fields in layouts_of(name, world)]
    done = on_ranks(world, model_rank, [(name, layouts[place]) for place in asked], STEPS)
    return [dict(zip(asked, of_rank, strict=True)) for of_rank in done]


@cache
def expected(name: str) -> dict[str, Any]:
    return alone(name, STEPS)


@pytest.mark.parametrize(
    ("name", "world", "place"),
    [
        pytest.param(name, world, place, marks=() if chosen else pytest.mark.slow)
        for name in MODELS
        for world in (2, 4, 8)
        for chosen in (True, False)
        for place in places(name, world, chosen)
    ],
)
def test_steps_and_gradients_are_those_of_one_process(name: str, world: int, place: int) -> None:
    wanted, names = expected(name), set()
    for rank in ran(name, world, place in CHOSEN.get((name, world), ())):
        found = rank[place]
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
        for key, gradient in found["gradients"].items():
            exact = wanted["gradients"][key]
            assert (gradient - exact).norm() <= 1e-5 * exact.norm() + 1e-9, key
        names |= set(found["gradients"])
    assert names == set(wanted["gradients"])


@pytest.mark.parametrize(
    "name", ["gpt2", "llama3.2-1b", "mixtral-8x7b", "deepseek-v2", "gemma2-9b", "llama4-scout"]
)
def test_it_has_as_many_parameters_as_the_description_counts(name: str) -> None:
    description = stagecut.model_description(name)
    model, _ = transformer(description)
    assert sum(p.numel() for p in model.parameters()) == description.parameters


@pytest.mark.parametrize(
    ("name", "part"), [("t5-3b", "an encoder"), ("gpt-oss-20b", "attention sinks")]
)
def test_what_is_not_built_is_named(name: str, part: str) -> None:
    with pytest.raises(InputError, match=f"{name}: it has .*{part}"):
        transformer(stagecut.model_description(name))


#: Query heads, key heads, tokens and width of a head.
SHAPE = 4, 2, 7, 8


def kept_by_attention(
    attention: Attention, dtype: Any, calls: int
) -> tuple[Any, list[Any], tuple[Any, ...]]:
    """Return what attention of a job returns, what it keeps, and queries, keys and values."""
    heads, shared, tokens, width = SHAPE
    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, tokens, width, generator=made) for n in (heads, shared, shared))
    given = tuple(x.to(dtype).requires_grad_() for x in (q, k, v))
    positions, kept = torch.arange(tokens), []
    hooks = torch.autograd.graph.saved_tensors_hooks
    with copied_heads(), hooks(lambda one: kept.append(one), lambda one: one):
        for _ in range(calls):
            found = CoreAttention(attention)(*given, positions)
    return found, kept, given


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_attends_to_what_it_lets_see_and_its_mask_is_kept_once(causal: bool) -> None:
    tokens = SHAPE[2]
    windowed = Attention(4, 2, 8, window=3, causal=causal)
    found, kept, (q, k, v) = kept_by_attention(windowed, torch.float32, 2)
    apart = torch.arange(tokens)[:, None] - torch.arange(tokens)
    seen = (apart < 3) & (apart >= 0) if causal else apart.abs() < 3
    scores = q @ k.repeat_interleave(2, 1).mT / 8**0.5
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(found, expected)
    masks = [one for one in kept if one.shape[-2:] == (tokens, tokens)]
    assert len(masks) == 2
    assert len({one.untyped_storage().data_ptr() for one in masks}) == 1


@pytest.mark.parametrize("recipe", ["fp32", "fsdp-bf16"])
@pytest.mark.parametrize("window", [None, 3])
def test_shared_heads_are_copied_as_memory_counts_it(recipe: str, window: int | None) -> None:
    """On GPUs kernels that keep no scores take them in 16 bits without a mask alone."""
    shared, whole = Attention(4, 2, 8, window=window), Attention(4, 4, 8)
    layout = stagecut.Layout(software="stagecut", sequence=SHAPE[2], recipe=recipe)
    said = [
        kept_by_module(Block(one, feed_forward=FeedForward(8)), 32, layout)["attention"]
        for one in (shared, whole)
    ]
    dtype = torch.float32 if recipe == "fp32" else torch.bfloat16
    _, kept, (q, _, _) = kept_by_attention(shared, dtype, 1)
    assert (said[0] == said[1]) == (sum(x.shape == q.shape for x in kept) == 4)
    assert (said[0] == said[1]) == (recipe == "fp32" or window is not None)
