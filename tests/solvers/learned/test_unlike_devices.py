"""Unlike devices: embeddings that tell them apart, and groups that are made for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stagecut import Cluster, DeviceKind, Link, Throughput, Workload  # noqa: E402
from stagecut.formulations.task import pose  # noqa: E402
from stagecut.instances.generate.graph_family import family_graph  # noqa: E402
from stagecut.solvers.learned.environments import PlacementEnvironment, environment  # noqa: E402
from stagecut.solvers.learned.policy import (  # noqa: E402
    as_drawn,
    draw_placements,
    embed_devices,
    log_probabilities,
    new_policy,
    one_thread,
    shares,
)
from stagecut.solvers.learned.train import (  # noqa: E402
    Example,
    Settings,
    imitate_step,
    new_training,
    targets,
    train_step,
)

GRAPH = family_graph("chain", 4, unlike=True)
FAST = DeviceKind("fast", 2, 90e9, times="accelerator", link=Link(0.0, 1e9))
SLOW = DeviceKind("slow", 2, 50e9, times="accelerator", slowdown=3.0, link=Link(0.0, 5e8))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def posed(kinds: tuple[DeviceKind, ...], workload: Workload = GRAPH) -> PlacementEnvironment:
    return environment(pose(workload, Cluster(kinds), Throughput()))


def telling_apart() -> Any:
    """A new policy whose embeddings of devices are no zeros any more."""
    policy, generator = new_policy(0), torch.Generator().manual_seed(0)
    torch.nn.init.normal_(policy["scheduler"]["device"].weight, generator=generator)
    return policy


def test_permuted_devices_permute_the_probabilities() -> None:
    policy, found = telling_apart(), []
    for kinds, place in (((FAST, SLOW), [0, 1, 2, 3]), ((SLOW, FAST), [2, 3, 0, 1])):
        of, rng = posed(kinds), np.random.default_rng(0)
        size = of.observation.graph.size
        drawn = as_drawn(
            policy, of, np.array([1.1, 1.4]), rng, rules=of.rules[0], order=np.arange(size),
            group=np.arange(size) * 4 // size, device=np.array(place)[[2, 0, 1, 3]],
        )  # fmt: skip
        taken, entropy = log_probabilities(policy, of, drawn)
        kind = of.observation.kind_of[drawn.device]
        found.append((taken.detach(), entropy.detach(), np.array(kinds)[kind].tolist()))
    (one, spread, kinds), (other, as_wide, same) = found
    assert other.numpy() == pytest.approx(one.numpy(), abs=1e-5)
    assert as_wide.numpy() == pytest.approx(spread.numpy(), abs=1e-5)
    assert kinds == same
    assert torch.isfinite(one).all()


@pytest.mark.parametrize(
    "change", [{"slowdown": 2.0}, {"memory_bytes": 20.0}, {"link": Link(0.0, 2e8)}], ids=str
)
def test_embeddings_tell_kinds_apart(change: dict[str, Any]) -> None:
    """By speed, by memory and by link; devices of a kind have one embedding."""
    other = replace(FAST, name="other", **change)
    embedded = embed_devices(telling_apart()["scheduler"], posed((FAST, other)).observation)
    assert torch.equal(embedded[0], embedded[1])
    assert not torch.allclose(embedded[0], embedded[2], atol=1e-4)


def test_equal_devices_need_no_embeddings() -> None:
    of, policy = posed((FAST,)), new_policy(0)
    drawn = draw_placements(policy, of, np.full(4, 1.2), np.random.default_rng(0))
    before, _ = log_probabilities(policy, of, drawn)
    after, _ = log_probabilities(telling_apart(), of, drawn)
    assert after.detach().numpy() == pytest.approx(before.detach().numpy(), abs=1e-5)


def test_groups_aim_at_the_speeds_of_devices() -> None:
    of, rng = posed((FAST, SLOW)), np.random.default_rng(0)
    share = shares(of, of.rules[0], 8, rng)
    assert np.sort(share, axis=1) == pytest.approx(np.tile([1 / 3, 1 / 3, 1, 1], (8, 1)))
    assert len(np.unique(share, axis=0)) > 1
    equal = posed((FAST,))
    assert (shares(equal, equal.rules[0], 2, rng) == 1).all()


def test_a_trained_policy_gives_the_fast_device_the_heavy_work() -> None:
    """One of two devices is four times as fast; the chain is of equal units."""
    chain = Workload(
        name="chain", ids=tuple(range(10)), edges=np.array([(v, v + 1) for v in range(9)]),
        times={"accelerator": np.ones(10)}, memory_bytes=np.ones(10),
        transfer=None, output_bytes=np.ones(10), time_unit="ms",
    )  # fmt: skip
    kinds = (replace(SLOW, count=1, slowdown=4.0), replace(FAST, count=1))
    of, settings = posed(kinds, chain), Settings(schedules=1, learning_rate=3e-3)
    training, rng = new_training(new_policy(0), settings, 0), np.random.default_rng(1)
    example = Example(of, np.array([0] * 8 + [1] * 2), np.array([1] * 8 + [0] * 2), 1.0)
    for _ in range(20):
        imitate_step(training, [example], settings.gradient_norm)
    for _ in range(20):
        train_step(training, [of], settings)
    for turned in (kinds, kinds[::-1]):
        of = posed(turned, chain)
        drawn = draw_placements(training.policy, of, targets(of, 64, rng), rng)
        where = np.take_along_axis(drawn.device, drawn.group, axis=1)
        fast = np.array([kind.name == "fast" for kind in turned])[where].sum(axis=1)
        assert np.median(fast) >= 7
        assert np.mean(fast > 5) > 0.9
