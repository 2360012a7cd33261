"""What takes a plan takes the result that holds it; limits are `Limits`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conformance import chain

import stagecut
from stagecut import InputError, Limits, Throughput, Workload, accelerators_and_cpus
from stagecut.instances.formats.outline import outline
from stagecut.instances.model.cluster import Cluster
from stagecut.runtime.diff import diff

CLUSTER = accelerators_and_cpus(2, memory_bytes=10.0)

TAKING: dict[str, Callable[[Workload, Any], object]] = {
    "simulate": lambda workload, plan: stagecut.simulate(workload, plan).makespan,
    "verify": lambda workload, plan: stagecut.verify(workload, plan).objective,
    "check_bound": lambda workload, plan: stagecut.check_bound(workload, plan).value,
    "dumps": lambda workload, plan: stagecut.instances.formats.dumps(plan, workload),
    "diff": lambda workload, plan: diff(outline(workload, plan), outline(workload, plan)).moved,
    "explain": lambda workload, plan: str(stagecut.explain(workload, plan, seconds=0)),
    "start": lambda workload, plan: stagecut.solve(workload, CLUSTER, start=plan).objective,
    "draw_graph": lambda workload, plan: stagecut.draw_graph(workload, plan, Path("graph.svg")),
    "draw_loads": lambda workload, plan: stagecut.draw_loads(
        stagecut.evaluate(workload, CLUSTER, Throughput(), solved(workload, CLUSTER).plan.solution),
        plan,
        Path("loads.svg"),
    ),
}


def solved(workload: Workload, cluster: Cluster) -> Any:
    return stagecut.solve(
        workload, cluster, Throughput(), method="greedy", limits=Limits(seconds=60)
    )


@pytest.mark.parametrize("name", TAKING)
def test_a_result_does_where_a_plan_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workload, take = chain([1.0, 2.0, 3.0]), TAKING[name]
    result = solved(workload, CLUSTER)
    assert take(workload, result) == take(workload, result.plan)
    nothing = stagecut.solve(chain([1.0, 2.0, 3.0], memory_bytes=np.full(3, 50.0)), CLUSTER)
    with pytest.raises(InputError, match=r"plan: the result has none \(infeasible: .*\)$"):
        take(workload, nothing)
    with pytest.raises(InputError, match="plan: this is of type int; give a Plan, or the Result"):
        take(workload, SimpleNamespace(plan=1))  # such as the plan of a training job
    with pytest.raises(InputError, match="plan: this is of type str; give a Plan, or the Result"):
        take(workload, "plan.json")


@pytest.mark.parametrize(
    ("limits", "said"), [(5, "Limits(seconds=5)"), (2.5, "seconds=2.5)"), ("5", "Limits(seconds=")]
)
def test_limits_that_are_no_limits(limits: Any, said: str) -> None:
    with pytest.raises(InputError) as raised:
        stagecut.solve(chain([1.0, 2.0]), CLUSTER, limits=limits)
    assert str(raised.value).startswith(f"limits: {limits!r}; write ")
    assert said in str(raised.value)


def test_compare_takes_problems_on_workloads_alone() -> None:
    job = stagecut.TrainingJob(global_batch=8, sequence=8)
    asked: Any
    for asked in (job, [job], {"job": job}):
        with pytest.raises(InputError, match=r"problem: .*; give one, such as Throughput"):
            stagecut.compare(chain([1.0, 2.0]), asked, cluster=CLUSTER)
