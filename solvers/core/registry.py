"""Which methods there are, by problem and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from ...formulations.task import Task
from ...instances import InputError, Solution
from ...instances.model.errors import quote
from .search import Search

#: A solver reads the task, offers its finds to the search, raises its bound, stops when told.
Solver = Callable[[Task, Search[Solution]], None]


@dataclass(frozen=True)
class Method:
    """A method of one problem.

    Parameters
    ----------
    where
        Module and function of its solver; imported when first asked for.
    reads
        The options of `solve` that it reads, and the values that each may have; () for any text.
    """

    where: str
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


#: Names the solver of integer programs.
_SOLVER: Mapping[str, tuple[str, ...]] = {"solver": ()}

#: Problem → method → where its solver is, and what it reads.
METHODS: dict[str, dict[str, Method]] = {
    "throughput": {
        "auto": Method("auto:auto", _SOLVER),
        "dp": Method("dp.dp:ideal_dp"),
        "linear-dp": Method("dp.dp:linearised_dp"),
        "pipedream": Method("dp.dp:pipedream"),
        "milp": Method("milp:compact", _SOLVER),
        "column-generation": Method("set_partitioning:set_partitioning"),
        "greedy": Method("greedy:greedy"),
        "local-search": Method("local_search:local_search"),
        "random": Method("local_search:random_best"),
        "single": Method("single_device:single_device"),
        "metis": Method("partitioner:metis"),
    },
    "mapping": {
        "auto": Method("auto:auto"),
        "layouts": Method("auto:layouts"),
        "milp": Method("milp:milp"),
        "joint": Method("joint:joint"),
    },
    "training": {
        "auto": Method("auto:auto"),
        "dp": Method("dp:training_dp"),
        "milp": Method("milp:milp", {"start": ("none",)}),
        "piper": Method("dp:piper"),
        "equal-stages": Method("equal_stages:equal_stages"),
        "data-parallel": Method("equal_stages:data_parallel"),
        "pipedream": Method("pipedream:pipedream"),
    },
    "latency": {
        "auto": Method("auto:auto"),
        "dp": Method("prove:label_dp"),
        "milp": Method("milp:strong"),
        "milp-big-m": Method("milp:big_m"),
        "lns": Method("lns:local_search"),
        "linear": Method("lns:linear"),
        "greedy": Method("greedy:greedy"),
        "max-load": Method("greedy:max_load"),
    },
}


#: Former names of methods, accepted for one more version.
FORMER_NAMES: dict[str, dict[str, str]] = {
    "throughput": {"dpl": "linear-dp", "setpart": "column-generation"},
    "training": {"equi": "equal-stages"},
}


def current_name(problem: str, method: str) -> str:
    """Return the name of a method that may be called by its former one."""
    return FORMER_NAMES.get(problem, {}).get(method, method)


#: Methods for throughput that can price relayed data.
RELAYED = ("auto", "dp", "linear-dp", "pipedream")


def solver(
    problem: str,
    method: str,
    *,
    relayed: bool = False,
    options: Mapping[str, str] | None = None,
) -> Solver:
    """Return the solver called `method`, now or formerly.

    Parameters
    ----------
    relayed
        Whether it must price relayed data.
    options
        Of `solve`: what it must read.

    Raises
    ------
    InputError
        If there is none for this problem, or it does not read an option; the message names those
        there are, and those that do.
    """
    method = current_name(problem, method)
    known = METHODS[problem]
    if method not in known:
        raise InputError(f"method: no {method!r} for {problem}; use one of {', '.join(known)}")
    if relayed and method not in RELAYED:
        raise InputError(
            f"method: {method} cannot price relayed data; use one of {', '.join(RELAYED)}"
        )
    for name, value in (options or {}).items():
        _check_option(problem, method, name, value)
    module, function = known[method].where.split(":")
    found: Solver = getattr(import_module(f"..{problem}.{module}", __package__), function)
    return found


def _check_option(problem: str, method: str, name: str, value: str) -> None:
    reads = METHODS[problem][method].reads
    if name not in reads:
        others = [other for other, it in METHODS[problem].items() if name in it.reads]
        who = f"only {' and '.join(others)} do" if others else f"no method for {problem} does"
        raise InputError(f"{name}: method {method} does not read it; {who}: leave it out")
    if reads[name] and value not in reads[name]:
        raise InputError(f"{name}: {quote(value)} is not one of {', '.join(reads[name])}")
    if name == "solver":
        from .other_solvers import check_solver  # with Pyomo, which takes a second to import

        check_solver(value)
