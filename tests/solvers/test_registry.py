"""What a method does not support is refused before it is run, in one line that says what to do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from conformance import METHODS_OF, task
from project import ROOT

from stagecut import Cluster, DeviceKind, InputError, Link, Throughput
from stagecut.formulations.task import pose
from stagecut.instances import DeviceMapping, PairLink
from stagecut.solvers import METHODS, supported_method
from stagecut.solvers.core.method import SolverName


def refused(
    problem: str, *, change: dict[str, object] | None = None, linked: bool = False
) -> dict[str, str]:
    """What each method says of a task; "" if it supports it."""
    of = task(problem)
    cluster = of.cluster
    if linked:
        pair = PairLink(("gpu 0", "gpu 1"), Link(0.0, 1.0))
        count = of.cluster.size if problem == "mapping" else 2  # as many as the topology has
        cluster = Cluster((DeviceKind("gpu", count),), (pair,))
    asked = pose(of.workload, cluster, replace(of.problem, **(change or {})))
    said = {}
    for method in METHODS_OF[problem]:
        try:
            supported_method(asked, method)
            said[method] = ""
        except InputError as error:
            said[method] = str(error)
    return said


def test_relayed_data() -> None:
    relayed = {"split": "contiguous", "relayed": True}
    said = refused("throughput", change=relayed)
    able = [method for method, reason in said.items() if not reason]
    assert able == ["auto", "dp", "linear-dp", "multilevel", "pipedream", "greedy"]
    assert said["random"] == (
        "method: random cannot price relayed data; use one of auto, dp, linear-dp, "
        "multilevel, pipedream, greedy"
    )


def test_splits() -> None:
    for split in ("contiguous", "per-device"):
        said = refused("throughput", change={"split": split})
        assert [method for method, reason in said.items() if reason] == ["column-generation"]
        assert said["column-generation"].endswith("use method dp or milp, or split noncontiguous")
    assert not any(refused("throughput").values())


@pytest.mark.parametrize("problem", METHODS_OF)
def test_links_between_devices(problem: str) -> None:
    said = refused(problem, linked=True)
    assert all(reason == "" for reason in said.values()) == (problem in ("throughput", "latency"))
    assert all(said.values()) == (problem in ("stream", "mapping", "sharding"))
    assert all("links" in reason for reason in said.values() if reason)


def test_what_the_programs_of_mapping_know() -> None:
    cheapest = refused("mapping", change={"collective": "cheapest"})
    assert [method for method, reason in cheapest.items() if reason] == ["milp", "joint"]
    assert cheapest["milp"] == "milp: it knows rings alone; set collective to ring"
    links = refused("mapping", change={"objective": "busiest-link"})
    assert [method for method, reason in links.items() if reason] == ["joint"]
    no_weights = task("mapping")
    workload = replace(no_weights.workload, extra={"weight_bytes": np.zeros(no_weights.workload.n)})
    assert isinstance(no_weights.problem, DeviceMapping)
    problem = replace(no_weights.problem, collective="cheapest")
    assert supported_method(
        pose(workload, no_weights.cluster, problem), "milp"
    )  # nothing is reduced


def test_the_name_of_a_solver_is_that_of_a_function() -> None:
    for of_problem in METHODS.values():
        for method in of_problem.values():
            if isinstance(method.solve, SolverName):
                module, _, function = method.solve.name.rpartition(".")
                assert callable(getattr(import_module(module), function))


def test_an_unknown_method_is_refused_with_those_there_are() -> None:
    of = task("throughput")
    asked = pose(of.workload, of.cluster, Throughput())
    with pytest.raises(InputError, match="no 'nothing' for throughput; use one of auto, dp"):
        supported_method(asked, "nothing")


#: Finds a plan, and prints the packages that take long to import and were not needed for it.
SOLVED = """
import sys, stagecut
stagecut.solve("unet", stagecut.accelerators_and_cpus(2), method={method!r},
               limits=stagecut.Limits(gap=0.9))
print([name for name in {heavy!r} if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("method", "heavy"),
    [("greedy", ("scipy", "pyomo", "highspy", "numba")), ("auto", ("pyomo", "scipy.stats"))],
)
def test_no_method_imports_what_others_need(method: str, heavy: tuple[str, ...]) -> None:
    words = [sys.executable, "-c", SOLVED.format(method=method, heavy=heavy)]
    done = subprocess.run(words, cwd=ROOT / ".dev", capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
