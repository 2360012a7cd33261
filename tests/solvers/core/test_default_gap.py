"""The default gap: 1 %, and 0.01 % for as long as that is cheap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stagecut import InputError, Limits
from stagecut.solvers.core import search as home
from stagecut.solvers.core.limits import CHEAP_PART
from stagecut.solvers.core.search import Search

USUAL = Limits(60.0, 0.01, cheap_gap=1e-4)


class Clock:
    """A clock that a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(home.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def near(clock: Clock, limits: Limits, reached: float) -> Search[float]:
    """Return a search that came within 0.5 % after so many seconds."""
    search: Search[float] = Search(limits, lambda objective: objective)
    search.offer(100.0)
    assert not search.should_stop()
    assert search.next_gap == limits.gap
    clock.now = reached
    search.raise_bound(99.5, "a test")
    return search


@pytest.mark.parametrize(("reached", "cheap"), [(10.0, 10.0), (0.1, 60 * CHEAP_PART)])
def test_goes_on_for_as_long_again_and_at_least_a_part_of_the_limit(
    clock: Clock, reached: float, cheap: float
) -> None:
    search = near(clock, USUAL, reached)
    assert search.next_gap == 1e-4
    clock.now = reached + 0.99 * cheap
    assert not search.should_stop()
    clock.now = reached + 1.01 * cheap
    assert search.should_stop()
    assert search.hit == "none"  # of its own accord, with the gap that was asked for
    search.say_gap()
    (said,) = search.notes
    assert said.startswith(f"gap: 1 % after {reached:.2f} s; 0.01 % is dear")


def test_stops_once_it_is_there(clock: Clock) -> None:
    search = near(clock, USUAL, 10.0)
    clock.now = 12.0
    search.raise_bound(99.995, "a test")
    assert search.should_stop()
    clock.now = 50.0
    search.say_gap()
    assert search.notes == ["gap: 1 % after 10.00 s, 0.01 % after 12.00 s"]


def test_a_gap_lost_again_is_sought_again(clock: Clock) -> None:
    search = near(clock, USUAL, 10.0)
    search.withdraw("a test")
    clock.now = 40.0
    assert not search.should_stop()
    assert search.next_gap == 0.01
    search.say_gap()
    assert not search.notes


@pytest.mark.parametrize(
    "limits", [Limits(60.0, 0.01), replace(USUAL, nodes=1000), replace(USUAL, cheap_gap=0.01)]
)
def test_an_explicit_gap_or_a_limit_of_nodes_ends_there(clock: Clock, limits: Limits) -> None:
    search = near(clock, limits, 10.0)
    assert search.should_stop()
    search.say_gap()
    assert not search.notes


def test_the_cheap_gap_is_at_most_the_gap(default_limits: dict[str, Limits]) -> None:
    for usual in default_limits.values():
        assert usual.least_gap == (0.0 if usual.gap == 0 else 1e-4)
    with pytest.raises(InputError, match=r"cheap gap: 0\.02"):
        Limits(gap=0.01, cheap_gap=0.02)
