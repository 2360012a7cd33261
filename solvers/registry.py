"""Which methods there are, by problem and name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..formulations.task import Task
from ..instances import InputError, Solution
from .search import Search

#: A solver reads the task, offers its finds to the search, raises its bound, stops when told.
Solver = Callable[[Task, Search[Solution]], None]

#: Problem → method → where its solver is; modules are imported when first asked for.
METHODS: dict[str, dict[str, str]] = {
    "throughput": {
        "auto": "auto:auto",
        "dp": "dp:ideal_dp",
        "dpl": "dp:linearised_dp",
        "pipedream": "dp:pipedream",
        "milp": "milp:compact",
        "setpart": "set_partitioning:set_partitioning",
        "greedy": "greedy:greedy",
        "local-search": "local_search:local_search",
        "random": "local_search:random_best",
        "single": "single_device:single_device",
        "metis": "partitioner:metis",
    },
    "mapping": {
        "auto": "mapping_auto:auto",
        "layouts": "mapping_auto:layouts",
        "milp": "mapping_milp:milp",
        "joint": "mapping_joint:joint",
    },
    "training": {
        "auto": "training_auto:auto",
        "dp": "training_dp:training_dp",
        "milp": "training_milp:milp",
        "piper": "training_dp:piper",
        "equi": "equi:equi",
        "data-parallel": "equi:data_parallel",
        "pipedream": "pipedream:pipedream",
    },
    "latency": {
        "auto": "latency_auto:auto",
        "dp": "latency_prove:label_dp",
        "milp": "latency_milp:strong",
        "milp-big-m": "latency_milp:big_m",
        "lns": "latency_lns:local_search",
        "linear": "latency_lns:linear",
        "greedy": "latency_greedy:greedy",
        "max-load": "latency_greedy:max_load",
    },
}


#: Methods for throughput that can price relayed data.
RELAYED = ("auto", "dp", "dpl", "pipedream")


def solver(problem: str, method: str, *, relayed: bool = False) -> Solver:
    """Return the solver called `method`.

    Parameters
    ----------
    relayed
        Whether it must price relayed data.

    Raises
    ------
    InputError
        If there is none for this problem; the message names those there are.
    """
    known = METHODS[problem]
    if method not in known:
        raise InputError(f"method: no {method!r} for {problem}; use one of {', '.join(known)}")
    if relayed and method not in RELAYED:
        raise InputError(
            f"method: {method} cannot price relayed data; use one of {', '.join(RELAYED)}"
        )
    module, function = known[method].split(":")
    found: Solver = getattr(import_module(f".{module}", __package__), function)
    return found
