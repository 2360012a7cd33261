"""A solver that lies, and a case for each driver of integer programs that asks it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
from brute_sharding import random_problem, random_program
from cases import random_case
from mapping_joint_cases import network
from training_cases import random_training_case

from stagecut import Cluster, Latency, Limits, PipelineJob, Result, Throughput, Workload, solve
from stagecut.instances import DeviceMapping, Problem, StagecutError, topology
from stagecut.solvers.core import milp_driver, search
from stagecut.solvers.core.highs import Outcome

Case = tuple[Workload, Cluster | None, Problem, str]

#: Ends what hangs.
LIMITS = Limits(seconds=300, nodes=4)


@dataclass
class SearchTime:
    """The time of searches, which passes at once while a solver is silent."""

    passed_s: float = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


TIME = SearchTime()


def _throughput(split: str, method: str = "milp") -> Case:
    workload, cluster = random_case(2)
    return workload, cluster, Throughput(split=split), method  # type: ignore[arg-type]


def _training() -> Case:
    workload, cluster, problem = random_training_case(1, kinds=2, max_nodes=3)
    return workload, cluster, problem, "milp"


def _mapping(method: str) -> Case:
    workload = network(np.random.default_rng(0), 4, backward=False)
    problem = DeviceMapping(topology("mesh2d:2x2"), 2, 2, mode="both", collective="ring")
    return workload, None, problem, method


def _sharding(method: str) -> Case:
    rng = np.random.default_rng(1)
    return random_program(rng, 8), None, random_problem(rng), method


def _islands() -> Case:
    workload = network(np.random.default_rng(0), 8, backward=False)
    where = topology("random_blk_1:16@seed=3")
    problem = DeviceMapping(where, 4, 4, mode="both", collective="ring", objective="busiest-link")
    return workload, None, problem, "layouts"


DRIVERS: dict[str, Callable[[], Case]] = {
    "compact, non-contiguous": lambda: _throughput("noncontiguous"),
    "compact, contiguous": lambda: _throughput("contiguous"),
    "compact, per device": lambda: _throughput("per-device"),
    "latency, potentials": lambda: (*random_case(53, max_nodes=6), Latency(1), "milp"),
    "latency, big-M": lambda: (*random_case(1, max_nodes=6), Latency(2), "milp-big-m"),
    "iteration": lambda: (*random_case(2, max_cores=0), PipelineJob(3, "zb-h1"), "milp"),
    "stream": _training,
    "mapping": lambda: _mapping("milp"),
    "mapping, joint": lambda: _mapping("joint"),
    "mapping, islands": _islands,
    "sharding, strong": lambda: _sharding("milp"),
    "sharding, compact": lambda: _sharding("milp-compact"),
}


def _outcome(**claims: object) -> Outcome:
    honest = Outcome("no solution", "none", None, math.inf, -math.inf)
    return replace(honest, **claims)


def infeasible(_linear, _search, **_: object) -> Outcome:
    return _outcome(status="infeasible", objective=math.inf, bound=math.inf)


def bound_too_high(_linear, _search, *, on_bound, **_: object) -> Outcome:
    """Of any program the objective is about 1000 at the incumbent."""
    on_bound(1e7)
    return _outcome(status="feasible", limit="nodes", bound=1e7)


def bound_slightly_too_high(_linear, _search, *, on_bound, **_: object) -> Outcome:
    on_bound(1000.0 * (1 - 1e-9))
    return _outcome(status="feasible", limit="nodes", bound=1000.0 * (1 - 1e-9))


def bound_of_nothing(_linear, _search, *, on_bound, **_: object) -> Outcome:
    for bound in (math.inf, math.nan, 1e300):
        on_bound(bound)
    return _outcome(status="optimal", bound=math.nan)


def rows_broken(linear, _search, *, on_incumbent, **_: object) -> Outcome:
    x = np.where(np.isfinite(linear.column_lower), linear.column_lower, 0.0)
    on_incumbent(x)
    return _outcome(status="optimal", x=x, objective=0.0, bound=0.0)


def all_ones(linear, _search, *, on_incumbent, **_: object) -> Outcome:
    x = np.ones(len(linear.cost))
    on_incumbent(x)
    return _outcome(status="optimal", x=x, objective=1.0, bound=1.0)


def status_without_solution(_linear, _search, **_: object) -> Outcome:
    return _outcome(status="optimal")


def failure(_linear, _search, **_: object) -> Outcome:
    raise StagecutError("HiGHS ended with 'Unknown'")


def silence(_linear, clock, **_: object) -> Outcome:
    TIME.passed_s += 2 * LIMITS.seconds
    assert clock.should_stop()
    return _outcome(limit="time")


LIES = (
    infeasible, bound_too_high, bound_slightly_too_high, bound_of_nothing, rows_broken, all_ones,
    status_without_solution, failure, silence,
)  # fmt: skip


@contextmanager
def lied_to(lie: Callable[..., Outcome]) -> Iterator[None]:
    """Let drivers hear a lie in place of what HiGHS says."""
    with patch.object(milp_driver, "run_highs", lie), patch.object(search, "time", TIME):
        yield


def asked(driver: str, lie: Callable[..., Outcome] | None = None) -> Result:
    """Return what a driver says; with a lie in place of what HiGHS says."""
    workload, cluster, problem, method = DRIVERS[driver]()
    with lied_to(lie) if lie else nullcontext():
        return solve(workload, cluster, problem, method=method, limits=LIMITS)
