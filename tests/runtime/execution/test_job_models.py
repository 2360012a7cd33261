"""Models built from descriptions train under layouts as one process does."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import stagecut
from stagecut import InputError

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from model_cases import MODELS, alone, model_rank  # noqa: E402
from ranks import on_ranks  # noqa: E402

from stagecut.runtime.execution.job.transformer import transformer  # noqa: E402

Fields = dict[str, Any]
SEQUENCE: Fields = {"tensor": 2, "sequence_parallel": True}

#: Layouts by number of processes: axes alone, in pairs, and in triples.
DENSE: dict[int, tuple[Fields, ...]] = {
    2: (
        {"data": 2},
        {"data": 2, "zero": 2, "recompute": "mlp"},
        {"data": 2, "zero": 3, "recompute": "full", "recompute_layers": 2},
        SEQUENCE,
        {"tensor": 2, "recompute": "layernorm"},
        {"context": 2, "zero": 1},
        {"context": 2, "context_kind": "all-to-all"},
        {"pipeline": 2, "stage_layers": (1, 3)},
        {"pipeline": 2, "chunks": 2, "schedule": "interleaved"},
        {"pipeline": 2, "schedule": "zb-h1"},
    ),
    4: (
        {**SEQUENCE, "data": 2, "zero": 3},
        {**SEQUENCE, "pipeline": 2, "recompute": "full", "recompute_layers": (1, 0)},
        {**SEQUENCE, "context": 2},
        {"context": 2, "data": 2, "zero": 3},
        {"context": 2, "pipeline": 2, "recompute": "core_attn"},
        {"data": 2, "pipeline": 2, "zero": 1},
        {"tensor": 2, "pipeline": 2, "chunks": 2, "run_schedule": "zb-v"},
    ),
    8: (
        {**SEQUENCE, "pipeline": 2, "data": 2, "zero": 1},
        {**SEQUENCE, "context": 2, "data": 2, "zero": 3},
        {"context": 2, "pipeline": 2, "data": 2, "zero": 1},
    ),
}
MIXED: dict[int, tuple[Fields, ...]] = {
    2: (
        {"data": 2, "expert": 2, "zero": 3},
        {"data": 2, "expert": 2, "recompute": "moe"},
        {"pipeline": 2},
        SEQUENCE,
        {**SEQUENCE, "expert": 2},
        {"context": 2, "expert": 2},
    ),
    4: (
        {"data": 4, "expert": 2, "zero": 2},
        {"data": 2, "pipeline": 2, "expert": 2, "zero": 1},
        {"context": 2, "data": 2, "expert": 4},
        {**SEQUENCE, "data": 2, "zero": 3},
        {**SEQUENCE, "data": 2, "expert": 2, "zero": 3},
        {**SEQUENCE, "data": 2, "expert": 4, "zero": 1},
        {**SEQUENCE, "pipeline": 2, "expert": 2, "recompute": "moe"},
    ),
    8: ({"context": 2, "data": 2, "pipeline": 2, "expert": 4, "zero": 1},),
}
#: A model, how many processes, and the layout's place among those of its kind.
CASES = [
    pytest.param(name, world, place, marks=[pytest.mark.slow] if world == 8 else [])
    for name in MODELS
    for world, layouts in (DENSE if name in ("llama", "gpt") else MIXED).items()
    for place in range(len(layouts))
]


def layouts_of(name: str, world: int) -> tuple[Fields, ...]:
    return (DENSE if name in ("llama", "gpt") else MIXED)[world]


@cache
def ran(name: str, world: int) -> list[list[dict[str, Any]]]:
    """Run a model under all layouts of so many processes; return what each process has of each."""
    jobs = [(name, fields) for fields in layouts_of(name, world)]
    done: list[list[dict[str, Any]]] = on_ranks(world, model_rank, jobs)
    return done


@cache
def expected(name: str) -> dict[str, Any]:
    return alone(name)


@pytest.mark.parametrize(("name", "world", "place"), CASES)
def test_ten_steps_and_gradients_are_those_of_one_process(
    name: str, world: int, place: int
) -> None:
    wanted, names = expected(name), set()
    for rank in ran(name, world):
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
