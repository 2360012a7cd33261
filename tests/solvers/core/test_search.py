"""One search and its clock: parts of its time, flags for kernels, searches within it, its peers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conformance import task

from stagecut import Limits, PlacementRules, Throughput
from stagecut.formulations.task import pose
from stagecut.instances import Solution
from stagecut.solvers import Search
from stagecut.solvers.core import search as home
from stagecut.solvers.core.search import Clock, Found, Infeasible, News, Proved, Withdrawn
from stagecut.solvers.core.under_rules import run_method


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that clocks show, which a test sets."""
    at = SimpleNamespace(s=0.0)
    monkeypatch.setattr(home, "time", SimpleNamespace(monotonic=lambda: at.s))
    return at


def number(value: float) -> float:
    return value


@pytest.mark.parametrize("fractions", [(1.0,), (0.5,), (0.5, 0.25), (1.0, 1.0, 0.1)])
@pytest.mark.parametrize("spent", [0.0, 3.0])
def test_a_part_of_a_clock_ends_with_its_share_and_with_the_whole(
    now: SimpleNamespace, fractions: tuple[float, ...], spent: float
) -> None:
    whole: Search[float] = Search(Limits(seconds=10.0), number)
    now.s = spent
    clock: Clock = whole
    for fraction in fractions:
        clock = clock.part(fraction)
    left = math.prod(fractions) * (10.0 - spent)
    assert clock.seconds_left == pytest.approx(left)
    now.s = spent + 0.99 * left
    assert not clock.should_stop()
    whole.interrupt()
    assert clock.should_stop()
    fresh = Clock(left)
    now.s += 1.01 * left
    assert fresh.should_stop()


def test_a_part_of_an_endless_clock_has_no_end(now: SimpleNamespace) -> None:
    clock = Clock().part(0.1)
    now.s = 1e9
    assert math.isinf(clock.seconds_left)
    assert not clock.should_stop()


def test_a_kernels_flag_is_set_by_another_thread() -> None:
    search: Search[float] = Search(Limits(), number)
    with search.flag() as halt:
        assert not halt[0]
        search.interrupt()
        until = time.monotonic() + 60
        while not halt[0] and time.monotonic() < until:
            time.sleep(0.001)
        assert halt[0]


def test_a_search_within_another_stops_with_it_and_with_its_own_gap(now: SimpleNamespace) -> None:
    whole: Search[float] = Search(Limits(seconds=10.0, gap=0.1, seed=3), number)
    inner: Search[str] = Search(Limits(), len, within=whole.part(0.5))
    assert inner.limits == Limits(seconds=5.0)
    longer: Search[str] = Search(Limits(seconds=2.0), len, within=whole.part(0.5))
    assert longer.limits.seconds == 2.0
    assert not inner.should_stop()
    now.s = 5.1
    assert inner.should_stop()
    assert inner.hit == "time"
    assert not whole.should_stop()
    other: Search[str] = Search(Limits(), len, within=whole.part())
    whole.interrupt()
    assert other.should_stop()
    closed: Search[str] = Search(Limits(), len)
    closed.offer("four")
    closed.raise_bound(4.0, "a test")
    assert closed.should_stop()


def test_a_search_is_done_once_it_cannot_beat_what_is_known_elsewhere() -> None:
    search: Search[float] = Search(Limits(gap=0.1), number)
    search.cutoff = 10.0
    search.raise_bound(8.9, "a test")
    assert not search.should_stop()
    search.raise_bound(9.0, "a test")
    assert search.should_stop()
    assert search.hit == "none"


class Heard:
    """Peers that keep what they are told, with its sender."""

    def __init__(self) -> None:
        self.told: list[tuple[News, str]] = []

    def tell(self, news: News, sender: str) -> None:
        self.told.append((news, sender))

    def take(self, search: Search[Any]) -> None:
        """Nothing comes from them."""


@pytest.mark.parametrize("sender", ["", "another"])
def test_peers_are_told_what_is_better_and_who_found_it(sender: str) -> None:
    search: Search[float] = Search(Limits(), number)
    search.peers = peers = Heard()
    news: list[News] = [
        Proved(1.0, "one", {"why": 1}),
        Found(5.0, 5.0),
        Found(6.0, 6.0),
        Proved(0.5, "two", {}),
        Withdrawn("one", ""),
        Infeasible("because"),
    ]
    for item in news:
        if sender:
            search.learn(item, sender)
        else:
            match item:
                case Found(solution):
                    search.offer(solution)
                case Proved(bound, origin, certificate):
                    search.raise_bound(bound, origin, certificate)
                case Withdrawn(origin, claim):
                    search.withdraw(origin, claim)
                case Infeasible(because):
                    search.prove_infeasible(because)
    assert peers.told == [(item, sender) for item in [*news[:2], *news[4:]]]
    assert search.found_by == search.proved_by == sender


def test_a_solution_that_comes_is_judged_and_a_bound_above_it_withdrawn() -> None:
    search: Search[float] = Search(Limits(), number)
    search.raise_bound(7.0, "too high")
    search.learn(Found(5.0, 1.0), "a liar")
    assert search.objective == 5.0
    assert search.bound == -math.inf
    search.learn(Found(4.0, 6.0), "a modest one")
    assert search.objective == 5.0


@pytest.mark.parametrize("above", [1e-5, 0.1, 1.0])
def test_a_bound_above_a_plan_is_refused_however_little_it_is(above: float) -> None:
    search: Search[float] = Search(Limits(), number)
    search.offer(5.0)
    assert not search.raise_bound(5.0 * (1 + above), "too high")
    assert search.bound == -math.inf
    assert "a defect" in search.notes[0]
    assert not search.raise_bound(4.0, "too high")  # what else it says is not believed either
    assert search.raise_bound(4.0, "another")


CHAIN = task("throughput", [1.0, 2.5, 3.0, 2.1])
PAIR = tuple(str(node) for node in CHAIN.workload.ids[:2])
APART, TOGETHER = PlacementRules(apart=(PAIR,)), PlacementRules(together=(PAIR[:1],))


def run_under_rules(
    solver: Callable[[Search[Solution]], None], rules: PlacementRules, limits: Limits
) -> Search[Solution]:
    """Run a solver on each case of a task with rules, and return the search in the whole task."""
    posed = pose(CHAIN.workload, CHAIN.cluster, Throughput(placement_rules=rules))
    whole: Search[Solution] = Search(limits, lambda _: math.inf)
    run_method(lambda _task, search: solver(search), posed, whole)
    return whole


def raises(search: Search[Solution]) -> None:
    search.raise_bound(100.0, "a test")
    search.stop_for("nodes")


def withdraws(search: Search[Solution]) -> None:
    raises(search)
    search.withdraw("a test")


def raises_in_one_case(search: Search[Solution]) -> None:
    if not search.notes:
        raises(search)
    search.note("one case is done")


@pytest.mark.parametrize(
    ("solver", "rules", "holds"),
    [
        (raises, TOGETHER, True),
        (withdraws, TOGETHER, False),
        (raises, APART, True),
        (raises_in_one_case, APART, False),
    ],
)
def test_a_bound_holds_for_the_whole_task_if_it_holds_in_each_case(
    solver: Callable[[Search[Solution]], None], rules: PlacementRules, holds: bool
) -> None:
    found = run_under_rules(solver, rules, Limits())
    assert (found.bound == 100.0) == holds
    assert found.hit == "nodes"


def test_a_case_whose_time_is_over_ends_the_search_by_its_time(now: SimpleNamespace) -> None:
    cases: list[bool] = []

    def solver(search: Search[Solution]) -> None:
        if not cases:
            now.s += 1.01 * search.seconds_left
        cases.append(search.should_stop())

    found = run_under_rules(solver, APART, Limits(seconds=100.0))
    assert cases[0]
    assert not any(cases[1:])
    assert len(cases) > 1
    assert found.seconds < 100.0
    assert found.hit == "time"
