"""Our own loop: replicas, asynchronous training, equal to one process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from loop_workers import (  # noqa: E402
    gradients,
    layers,
    microbatch,
    momentum,
    schedule_of,
    sparse_gradients,
    train,
)
from ranks import on_ranks  # noqa: E402
from torch.func import functional_call  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from stagecut import InputError  # noqa: E402
from stagecut.instances import Link  # noqa: E402
from stagecut.runtime.execution.options import RunOptions  # noqa: E402
from stagecut.runtime.execution.own_loop.loop import stage_chain  # noqa: E402
from stagecut.runtime.execution.own_loop.transport import bytes_of  # noqa: E402
from stagecut.runtime.execution.own_loop.versions import check_two_versions, with_updates  # noqa: E402
from stagecut.runtime.execution.steps import RankTraining, take_steps  # noqa: E402
from stagecut.runtime.schedules import Kind, make_schedule  # noqa: E402
from stagecut.runtime.simulate.network import HostMemory  # noqa: E402
from stagecut.runtime.simulate.stages import chain  # noqa: E402


def alone(ranks: list[list[int]], m: int) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    """Losses and gradients of the second batch in one process."""
    model = layers(2 * len(ranks))
    losses = [F.mse_loss(model(x), y) for x, y in (microbatch(m + j) for j in range(m))]
    (sum(losses) / m).backward()
    named = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {j: loss.item() for j, loss in enumerate(losses)}, named


CASES = [
    ([[0, 1], [2]], 3, "1f1b"),
    ([[0, 1, 2], [3], [0, 1]], 4, "1f1b"),
    ([[0], [1], [0]], 2, "zb-h1"),
    ([[0, 1]], 2, "gpipe"),
]


#: The same with replicas elsewhere.
MORE = [([[0], [1, 2]], 3, "gpipe"), ([[0, 1], [2, 3]], 4, "1f1b")]


@pytest.mark.parametrize(
    ("ranks", "world", "name"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_gradients_are_those_of_one_process(ranks: list[list[int]], world: int, name: str) -> None:
    schedule = schedule_of(name, ranks, world, 6)
    done = on_ranks(world, gradients, schedule, ranks, frozenset({0}))
    losses, wanted = alone(ranks, 6)
    found = {j: loss for own, *_ in done for j, loss in own.items()}
    assert found == pytest.approx(losses, rel=1e-5)
    norm = torch.cat([grad.flatten() for grad in wanted.values()]).norm().item()
    assert norm > 0.01
    seen = set()
    for _, grads, before, clipped in done:
        seen |= grads.keys()
        assert before == pytest.approx(norm, rel=1e-4)
        for key, grad in grads.items():
            torch.testing.assert_close(grad, wanted[key], rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(clipped[key], grad * (0.01 / norm), rtol=1e-3, atol=1e-7)
    assert seen == wanted.keys()


def emulate(
    ranks: list[list[int]],
    microbatches: int,
    sizes: list[int],
    version: Callable[[int, int], int],
    order: Callable[[int], list[int]],
) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    """Losses and parameters of asynchronous training in one process.

    Microbatch j runs whole, each stage s with its weights after version(s, j) updates; the n-th
    update of a stage comes from the mean gradient of the microbatches of its round order(s)[n].
    """
    model = layers(2 * len(ranks))
    own: list[dict[str, torch.Tensor]] = [{} for _ in ranks]
    for name, parameter in model.named_parameters():
        own[int(name.split(".")[0]) // 2][name] = parameter
    kept = [[{name: x.detach().clone() for name, x in named.items()}] for named in own]
    optimizers = [momentum(named.values()) for named in own]
    losses: dict[int, float] = {}

    @cache
    def gradients_of(j: int) -> dict[str, torch.Tensor]:
        used = {}
        for s in range(len(ranks)):
            for name, value in weights(s, version(s, j)).items():
                used[name] = value.clone().requires_grad_()
        x, y = microbatch(j)
        loss = F.mse_loss(functional_call(model, used, (x,)), y)
        loss.backward()
        losses[j] = loss.item()
        return {name: value.grad for name, value in used.items()}

    def weights(s: int, updates: int) -> dict[str, torch.Tensor]:
        while len(kept[s]) <= updates:
            first = order(s)[len(kept[s]) - 1] * sizes[s]
            grads = [gradients_of(j) for j in range(first, first + sizes[s])]
            for name, parameter in own[s].items():
                parameter.grad = sum(grad[name] for grad in grads) / sizes[s]
            optimizers[s].step()
            kept[s].append({name: x.detach().clone() for name, x in own[s].items()})
        return kept[s][updates]

    final: dict[str, torch.Tensor] = {}
    for s, size in enumerate(sizes):
        final |= weights(s, microbatches // size)
    return losses, final


def check_training(
    done: list[tuple[dict[int, float], dict[str, torch.Tensor]]],
    wanted: tuple[dict[int, float], dict[str, torch.Tensor]],
) -> None:
    losses, parameters = wanted
    assert {j: x for own, _ in done for j, x in own.items()} == pytest.approx(losses, rel=1e-5)
    assert {name for _, own in done for name in own} == parameters.keys()
    for _, own in done:
        for name, value in own.items():
            torch.testing.assert_close(value, parameters[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("ranks", [[[0], [1], [2]], [[0], [1], [0]]])
def test_pipedream_is_its_emulation(ranks: list[list[int]]) -> None:
    world, m = len({r for own in ranks for r in own}), 12
    schedule = schedule_of("pipedream", ranks, world, m)

    def backwards(s: int, before: int | None = None) -> list[int]:
        row = schedule.of(ranks[s][0])
        row = row if before is None else row[: row.index((s, Kind.F, before))]
        return [a.microbatch for a in row if a[:2] == (s, Kind.B)]

    def version(s: int, j: int) -> int:
        return len(backwards(s, j))

    assert any(version(0, j) < j for j in range(m)), "it is asynchronous"
    assert any(version(0, j) != version(2, j) for j in range(m)), "stages disagree on versions"
    done = on_ranks(world, train, schedule, ranks, None)
    check_training(done, emulate(ranks, m, [1, 1, 1], version, backwards))


@pytest.mark.parametrize(
    ("ranks", "reduces"),
    [
        ([[0, 1], [2]], False),
        ([[0], [1, 2]], True),
        pytest.param([[0, 1], [2]], True, marks=pytest.mark.slow),
        pytest.param([[0], [1, 2]], False, marks=pytest.mark.slow),
        pytest.param([[0, 1], [2, 3, 4]], False, marks=pytest.mark.slow),
        pytest.param([[0, 1], [2, 3, 4]], True, marks=pytest.mark.slow),
    ],
)
def test_pipedream_with_replicas_is_its_emulation(ranks: list[list[int]], reduces: bool) -> None:
    world, m = sum(map(len, ranks)), 18
    schedule = schedule_of("pipedream", ranks, world, m, reduces=reduces)
    sizes = [len(own) for own in ranks]
    updated = with_updates(schedule, stage_chain(ranks, world, training=True), sizes)

    def steps(s: int, replica: int = 0, before: int | None = None) -> list[int]:
        row = updated[ranks[s][replica]]
        row = row if before is None else row[: row.index((s, Kind.F, before))]
        return [a.microbatch for a in row if a[:2] == (s, Kind.STEP)]

    def version(s: int, j: int) -> int:
        return len(steps(s, j % sizes[s], j))

    assert any(version(0, j) < j // sizes[0] for j in range(m))
    done = on_ranks(world, train, schedule, ranks, None)
    check_training(done, emulate(ranks, m, sizes, version, steps))


def test_2bw_is_its_formula() -> None:
    ranks, batch, batches = [[0, 1], [2]], 6, 5
    schedule = schedule_of("2bw", ranks, 3, batches * batch, reduces=True)
    done = on_ranks(3, train, schedule, ranks, batch)
    wanted = emulate(
        ranks,
        batches * batch,
        [batch, batch],
        lambda _, j: max(j // batch - 1, 0),
        lambda _: list(range(batches)),
    )
    check_training(done, wanted)


def test_tensors_of_every_type_are_sent_by_their_bytes() -> None:
    turned = torch.randn(3, 2, dtype=torch.complex64)
    made = torch.empty(2, 3, dtype=torch.complex64)
    bytes_of(made).copy_(bytes_of(turned.conj().T))
    assert torch.equal(made, turned.conj().T)
    negative = torch._neg_view(torch.randn(2, 3))
    real = torch.empty(2, 3)
    bytes_of(real).copy_(bytes_of(negative))
    assert torch.equal(real, negative)


def test_too_few_inputs_for_what_runs_at_a_time_are_told() -> None:
    training = RankTraining(run=lambda *_: [0.0], trained=None, restore=None, plan="", count=4)
    assert len(take_steps(training, range(7), RunOptions())) == 1
    with pytest.raises(InputError, match="inputs: 3 microbatches, and 4 are taken at a time"):
        take_steps(training, range(3), RunOptions())


def test_2bw_wants_batches_as_long_as_the_pipeline() -> None:
    ranks = [[0], [1], [2]]
    schedule = schedule_of("2bw", ranks, 3, 12)
    stages = stage_chain(ranks, 3, training=True)
    with pytest.raises(InputError, match="too small for this pipeline"):
        check_two_versions(with_updates(schedule, stages, [1, 1, 1]), [1, 1, 1])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_updates_of_replicas_never_deadlock(data: st.DataObject) -> None:
    replicas = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    ends = list(itertools.accumulate(replicas))
    ranks = [list(range(end - r, end)) for r, end in zip(replicas, ends, strict=True)]
    times = data.draw(st.lists(st.sampled_from([0.3, 1.0, 2.0, 5.0]), min_size=4, max_size=4))
    weights = [data.draw(st.sampled_from([0.0, 1.0])) for _ in ranks]
    stages = chain(times[: len(ranks)], times[-len(ranks) :], replicas=ranks, weight_bytes=weights)
    network = HostMemory(all_reduce=Link(0.0, 1.0))
    schedule = make_schedule("pipedream", stages, 2 * math.lcm(*replicas), network)
    updated = with_updates(schedule, stages, replicas)
    done: set[tuple[int, int, int]] = set()
    at = [0] * len(updated)
    moved = True
    while moved:  # each rank goes on as far as it can; replicas step together
        moved = False
        for row, i in zip(updated, at, strict=True):
            if i == len(row):
                continue
            s, kind, j = row[i]
            needs = [(s - 1, Kind.F, j)] if kind == Kind.F and s else []
            if kind == Kind.B:
                needs = [(s, Kind.F, j)] + ([(s + 1, Kind.B, j)] if s + 1 < len(ranks) else [])
            others = [d for d in ranks[s] if kind == Kind.STEP and tuple(row[i]) not in done]
            together = all(at[d] < len(updated[d]) and updated[d][at[d]] == row[i] for d in others)
            if all(n in done for n in needs) and together:
                done.add((s, kind, j))
                at[updated.index(row)] += 1
                moved = True
    assert at == [len(row) for row in updated]
    for s, r in enumerate(replicas):
        for d in ranks[s]:
            steps = [a.microbatch for a in updated[d] if a[:2] == (s, Kind.STEP)]
            assert sorted(steps) == list(range(schedule.microbatches // r))


def test_sparse_gradients_of_replicas_are_added_up_and_clipped() -> None:
    """Rank 0 sees words 1, 1 and 2, rank 1 each by one higher; their rows have two elements."""
    for total, norms in on_ranks(2, sparse_gradients):
        assert total.tolist() == [[0, 0], [2, 2], [3, 3], [1, 1]]
        assert norms == pytest.approx([math.sqrt(10), math.sqrt(28)])
