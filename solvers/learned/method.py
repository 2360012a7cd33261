"""The method `learned`: placements drawn from a policy, the best of each batch offered."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...formulations.task import Task
from ...instances import Problem, Solution
from ...instances.common.arrays import Floats
from ..core.search import Search
from .policy import Drawn, draw_placements, one_thread
from .policy_file import policy_of, read_policy
from .ppo import Settings
from .rewards import subject
from .subject import Subject
from .train import new_training, targets, train_step

#: Placements of a batch, and of a search that nothing else ends.
BATCH, DRAWN = 32, 256
#: Placements of a batch that the verifier sees at most.
OFFERED = 4
#: Loads to aim at, relative to the best found, once there is one.
LOWEST_AIM, HIGHEST_AIM = 0.8, 1.05
#: Batches that aim at any load, of so many.
FREE_AIM = 4


def learned(task: Task[Problem], search: Search[Solution]) -> None:
    """Draw placements until a limit; `limits.nodes` counts them, and no bound is proved.

    With the option ``fine-tune`` the policy is trained on the task for so many seconds first, and
    what it draws in training is offered, too.
    """
    with one_thread():
        _learned(task, search)


def _learned(task: Task[Problem], search: Search[Solution]) -> None:
    with search.phase("load"):
        policy = policy_of(read_policy(task.options.get("policy")))
        of = subject(task)
    offer = _Offers(of, search)
    if not of.rules:
        return
    rng = np.random.default_rng(search.limits.seed)
    seconds = float(task.options.get("fine-tune", 0))
    if seconds:
        with search.phase("fine-tune"):
            _fine_tune(policy, of, offer, search, seconds)
    with search.phase("solve"):
        number = 0
        while not search.should_stop():
            left = offer.left
            if left <= 0:
                search.stop_for("nodes")
                return
            aims = _aims(of, offer.best, min(BATCH, int(min(left, BATCH))), number, rng)
            try:
                offer(draw_placements(policy, of, aims, rng, check=offer.check))
            except _Stopped:
                return
            number += 1


def _aims(of: Subject, best: float, count: int, number: int, rng: np.random.Generator) -> Floats:
    if math.isinf(best) or number % FREE_AIM == 0:
        return targets(of, count, rng)
    return best * rng.uniform(LOWEST_AIM, HIGHEST_AIM, count)


def _fine_tune(
    policy: object, of: Subject, offer: Callable[[Drawn], None], search: Search[Solution], s: float
) -> None:
    several = len(set(of.scene.kind_of.tolist())) > 1
    settings = Settings(schedules=10 if several else 1)  # of one kind all schedules are alike
    training = new_training(policy, settings, search.limits.seed)
    end = search.seconds + s
    while search.seconds < end and not search.should_stop():
        offer(train_step(training, [of], settings).drawn)


class _Stopped(Exception):
    """Raised in the midst of a batch when the search must stop and has a plan."""


class _Offers:
    """Offers the best placements of a batch, and counts what was drawn."""

    def __init__(self, of: Subject, search: Search[Solution]) -> None:
        self.of, self.search = of, search
        self.best, self.drawn = math.inf, 0

    @property
    def left(self) -> float:
        """Placements that may still be drawn."""
        limits = self.search.limits
        endless = limits.nodes is None and limits.seconds is not None
        most = DRAWN if limits.nodes is None else limits.nodes
        return math.inf if endless else most - self.drawn

    def check(self) -> None:
        """Raise if the search must stop, and has a plan."""
        if self.search.best is not None and self.search.should_stop():
            raise _Stopped

    def __call__(self, drawn: Drawn) -> None:
        """Offer some placements that seem better than all before."""
        self.drawn += len(drawn.values)
        for i in np.argsort(drawn.values, kind="stable")[:OFFERED].tolist():
            if not drawn.values[i] < self.best or self.search.should_stop():
                return
            offered = self.search.offer(self.of.solution(drawn.group[i], drawn.device[i]))
            if offered:
                self.best = float(drawn.values[i])
                return
