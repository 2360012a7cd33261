"""Workloads, plans, results and reports show themselves in a few words, whatever files hold."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from conformance import chain
from project import MODULES, ROOT

from stagecut import (
    Cluster,
    DeviceKind,
    DeviceMapping,
    Latency,
    PipelineJob,
    PlacementRules,
    Throughput,
    accelerators_and_cpus,
    best_schedule,
    evaluate,
    solve,
    topology,
)
from stagecut.instances.common.units import show_gap, show_percent
from stagecut.runtime.simulate import chain as stage_chain


def test_in_a_line_and_in_a_notebook_as_a_table() -> None:
    workload = chain(np.arange(1.0, 60.0))
    result = solve(workload, accelerators_and_cpus(2), method="greedy")
    assert result.plan is not None
    plan = result.plan
    report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
    for value in (workload, result, plan, report):
        line, table = repr(value), value._repr_html_()
        assert line.startswith(f"{type(value).__name__}(")
        assert len(line) < 300
        assert "\n" not in line
        assert table.count("<tr>") == len(value.summary()) + 1
    assert "nodes=59" in repr(workload)
    assert repr(topology("ring:4")).endswith("links=4, routing=hops)")
    assert f"objective={plan.objective:.6g}" in repr(result)
    assert "violations=none" in repr(report)


def test_problems_and_clusters_are_tables_in_a_notebook_and_keep_their_repr() -> None:
    place = topology("ring:4")
    cluster = Cluster((DeviceKind("<b>gpu</b>", 2, 2**30), DeviceKind("cpu", 1, host=True)))
    for value, rows in (
        (Throughput(split="contiguous"), 5),
        (Latency(2), 1),
        (PipelineJob(4, "stream"), 6),
        (DeviceMapping(place, 2, 2), 9),
        (place, 6),
        (cluster, 3),
    ):
        table = value._repr_html_()
        assert table.count("<tr>") == rows + 1, table
        assert "<b>" not in table
        assert repr(value).startswith(f"{type(value).__name__}(")
        assert f"{value.summary()}"[1] == "'"
    assert "<th>topology</th><td>ring:4</td>" in DeviceMapping(place, 2, 2)._repr_html_()
    assert "&lt;b&gt;gpu" in cluster._repr_html_()
    ruled = Throughput(split="contiguous", placement_rules=PlacementRules(max_stages=2))
    assert eval(repr(ruled)) == ruled
    assert "max_stages=2" in ruled._repr_html_()


def test_simulations_and_best_schedules_are_short_and_tables() -> None:
    best = best_schedule(stage_chain([1.0, 1.0], [1.0, 1.0]), 2)
    for value in (best, best.simulation):
        assert len(repr(value)) < 300
        assert value._repr_html_().count("<tr>") == len(value.summary()) + 1
    assert "makespan=5" in repr(best)


def test_names_from_files_are_no_markup() -> None:
    named = replace(chain([1.0, 2.0]), name="<script>alert('a')</script>\n\x1b[31m&")
    assert "<script>" not in named._repr_html_()
    assert "&lt;script&gt;" in named._repr_html_()
    assert "\x1b" not in repr(named)
    assert "\n" not in repr(named)


@pytest.mark.parametrize(
    ("part", "signed", "said"),
    [
        (0.1, False, "10.0 %"),
        (-0.674, True, "−67.4 %"),
        (-0.674, False, "−67.4 %"),
        (1.5, True, "+150.0 %"),
        (-1e-9, True, "±0 %"),
        (-1e-9, False, "0.0 %"),
        (math.nan, True, "unknown"),
        (math.inf, False, "unknown"),
    ],
)
def test_percentages_look_alike(part: float, signed: bool, said: str) -> None:
    assert show_percent(part, signed=signed) == said


def test_all_percentages_are_written_in_one_place() -> None:
    assert show_gap(0.10244) == "10.244 %"
    own = re.compile(r":[^{}\s]*%\}|[0-9]f\} %")
    assert not [m for m in MODULES if own.search((ROOT / m).read_text(encoding="utf-8"))]
