"""Fitting links to the times of messages, without any: known links, with noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from stagecut import InputError, load_cluster, save
from stagecut.instances.topologies import load_topology, save_topology, topology
from stagecut.runtime.measure.fit import fit_postal, fit_ring, least_absolute_line
from stagecut.runtime.measure.measurement import (
    Measurement,
    MessageTimes,
    RankMachine,
    RankPair,
    to_cluster,
    to_topology,
)
from stagecut.runtime.measure.picture import draw_measurement
from stagecut.runtime.simulate.network import HostMemory, ring_all_reduce_s

SIZES = 64.0 * 4.0 ** np.arange(10)


def timed(median_s: np.ndarray, seed: int = 0, noise: float = 0.0) -> MessageTimes:
    """Return messages around these medians."""
    rng = np.random.default_rng(seed)
    return MessageTimes(SIZES, tuple(t * np.exp(rng.normal(0, noise, 31)) for t in median_s))


def machines(count: int, models: str = "aaaa", hosts: str = "xxxx") -> tuple[RankMachine, ...]:
    """Return machines whose models and hosts are these letters."""
    return tuple(RankMachine(hosts[r], "cpu", models[r], 1e9 * (r + 1)) for r in range(count))


def measurement(
    latency: float = 5e-5,
    speed: float = 2e9,
    noise: float = 0.02,
    models: str = "aaaa",
    hosts: str = "xxxx",
    slow: tuple[tuple[int, int], ...] = (),
) -> Measurement:
    """Return what four ranks with this link would measure; `slow` pairs have a tenth of it."""
    pairs = []
    for a in range(4):
        for b in range(a + 1, 4):
            rate = speed / 10 if (a, b) in slow else speed
            pairs.append(RankPair(a, b, timed(latency + SIZES / rate, 4 * a + b, noise)))
    ring = 6 * latency + 6 / 4 * SIZES / speed
    return Measurement("gloo", machines(4, models, hosts), tuple(pairs), timed(ring, 99, noise))


@pytest.mark.parametrize(("latency", "speed"), [(1e-6, 3e11), (5e-5, 2e9), (1e-2, 1e6)])
def test_exact_times_give_the_link_back(latency: float, speed: float) -> None:
    fit = fit_postal(SIZES, latency + SIZES / speed)
    assert fit.link.latency_s == pytest.approx(latency, rel=1e-9)
    assert fit.link.bytes_per_s == pytest.approx(speed, rel=1e-9)
    assert fit.worst_error < 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_noise_and_a_few_disturbed_sizes_hardly_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = (5e-5 + SIZES / 2e9) * np.exp(rng.normal(0, 0.03, len(SIZES)))
    times[rng.choice(len(SIZES), 2, replace=False)] *= 20
    link = fit_postal(SIZES, times).link
    assert link.latency_s == pytest.approx(5e-5, rel=0.15)
    assert link.bytes_per_s == pytest.approx(2e9, rel=0.15)


@pytest.mark.parametrize("seed", range(20))
def test_the_line_is_the_optimum_of_the_linear_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 8))
    x, y = rng.permutation(50)[:count] + 1.0, rng.uniform(0.1, 9, count)
    a, b = least_absolute_line(x, y)
    # variables: a, b, one error per point
    line = np.column_stack((1 / y, x / y))
    matrix = np.block([[line, -np.eye(count)], [-line, -np.eye(count)]])
    side = np.concatenate((np.ones(count), -np.ones(count)))
    best = linprog([0, 0, *np.ones(count)], A_ub=matrix, b_ub=side)
    assert a >= 0
    assert b >= 0
    assert np.abs((a + b * x) / y - 1).sum() == pytest.approx(best.fun, rel=1e-6, abs=1e-9)


def test_times_that_do_not_rise_give_a_very_fast_link() -> None:
    link = fit_postal(SIZES, np.full(len(SIZES), 1e-3)).link
    assert link.latency_s == pytest.approx(1e-3)
    assert link.seconds(SIZES[-1]) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_all_reduce_is_the_networks(ranks: int) -> None:
    hops = 2 * (ranks - 1)
    fit = fit_ring(SIZES, hops * 3e-5 + hops / ranks * SIZES / 1e9, ranks)
    network = HostMemory(all_reduce=fit.link)
    for size, seconds in zip(SIZES, fit.seconds, strict=True):
        assert ring_all_reduce_s(network, range(ranks), size) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("sizes", "seconds", "reason"),
    [
        ([64.0, 64.0], [1e-5, 1e-5], "two sizes"),
        ([64.0, 256.0], [1e-5, 0.0], "above 0"),
        ([64.0, 256.0], [1e-5, float("nan")], "above 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(sizes, seconds, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        fit_postal(np.array(sizes), np.array(seconds))


def test_the_cluster_file_is_read_back_and_device_d_is_rank_d(tmp_path) -> None:
    made = to_cluster(measurement(models="aaba"))
    save(made, tmp_path / "cluster.json")
    cluster = load_cluster(tmp_path / "cluster.json")
    assert cluster == made
    assert [kind.name for kind in cluster.kinds] == ["a", "b", "a #2"]
    assert [cluster.kinds[d.kind].memory_bytes for d in cluster.devices] == [1e9, 1e9, 3e9, 4e9]
    for kind in cluster.kinds:
        assert kind.link.bytes_per_s == pytest.approx(2e9, rel=0.05)
        assert kind.link.latency_s == pytest.approx(5e-5, rel=0.05)


def test_pairs_that_differ_much_have_their_own_links(tmp_path) -> None:
    slow = measurement(slow=((0, 1), (1, 3)))
    made = to_cluster(slow)
    save(made, tmp_path / "cluster.json")
    assert load_cluster(tmp_path / "cluster.json") == made
    assert len(made.links) == 6
    speeds = {(a, b): made.links[made.link_of[a, b]].link.bytes_per_s for a, b in [(0, 1), (0, 2)]}
    assert speeds[0, 1] == pytest.approx(2e8, rel=0.05)
    assert speeds[0, 2] == pytest.approx(2e9, rel=0.05)
    assert to_cluster(slow, "typical").links == ()
    assert to_cluster(measurement()).links == ()
    assert len(to_cluster(measurement(), "each").links) == 6


def test_the_topology_has_each_pairs_link(tmp_path) -> None:
    save_topology(to_topology(measurement(hosts="xyxy", slow=((0, 1),))), tmp_path / "t.json")
    read = load_topology(tmp_path / "t.json")
    assert topology(str(tmp_path / "t.json")).fingerprint == read.fingerprint
    assert read.island.tolist() == [0, 1, 0, 1]
    assert read.routes.bytes_per_s[0, 1] == pytest.approx(2e8, rel=0.05)
    assert read.routes.bytes_per_s[3, 1] == pytest.approx(2e9, rel=0.05)


def test_a_bad_fit_is_said() -> None:
    good = measurement()
    assert good.warnings == []
    odd = timed(np.where(np.arange(len(SIZES)) % 2, 1e-5, 1e-3))
    pairs = (RankPair(0, 1, odd), *good.pairs[1:])
    (line,) = Measurement("gloo", good.ranks, pairs, good.all_reduce).warnings
    assert "ranks 0 and 1" in line
    assert "1 of 6 pairs" in line
    (line,) = Measurement("gloo", good.ranks, good.pairs, odd).warnings
    assert "all-reduce" in line


@pytest.mark.parametrize("name", ["fit.png", "fit.svg"])
def test_the_picture_is_drawn(tmp_path, name: str) -> None:
    draw_measurement(measurement(slow=((0, 1),)), tmp_path / name)
    assert (tmp_path / name).stat().st_size > 10_000
    with pytest.raises(InputError, match=r"fit\.xyz"):
        draw_measurement(measurement(), tmp_path / "fit.xyz")
