"""Workloads, plans, results and reports show themselves in a few words, whatever files hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from conformance import chain

from stagecut import accelerators_and_cpus, evaluate, solve


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
    assert f"objective={plan.objective:.6g}" in repr(result)
    assert "violations=none" in repr(report)


def test_names_from_files_are_no_markup() -> None:
    named = replace(chain([1.0, 2.0]), name="<script>alert('a')</script>\n\x1b[31m&")
    assert "<script>" not in named._repr_html_()
    assert "&lt;script&gt;" in named._repr_html_()
    assert "\x1b" not in repr(named)
    assert "\n" not in repr(named)
