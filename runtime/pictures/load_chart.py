"""The loads of a plan as a picture: who computes and who transfers, how full the memories are."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

from ...instances import Plan
from ...instances.common.escape import plain
from ..verify.report import Report
from .figure import names_as_they_are, save_picture

COMPUTE, TRANSFER, MEMORY, LINE = "#3b6fb6", "#e08a3c", "#5a9e6f", "#333333"


@names_as_they_are
def draw_loads(report: Report, plan: Plan, path: Path) -> None:
    """Draw a bar per device, with objective and bound as lines, into a PNG, SVG or PDF file.

    Parameters
    ----------
    report
        Of the plan; see `evaluate`.
    plan
        For throughput.
    path
        Ending in ``.png``, ``.svg`` or ``.pdf``.

    Raises
    ------
    InputError
        If the file's ending names no format that can be drawn.

    Examples
    --------
    >>> from pathlib import Path
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> report = stagecut.evaluate(workload, cluster, plan.problem, plan.solution)
    >>> stagecut.draw_loads(report, plan, Path("loads.svg"))
    """
    figure = Figure(figsize=(9, 1.6 + 0.42 * len(report.devices)), layout="constrained")
    loads, memory = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    rows = range(len(report.devices))
    compute = [device.compute for device in report.devices]
    transfer = [device.transfer for device in report.devices]
    loads.barh(rows, compute, color=COMPUTE, label="compute")
    loads.barh(rows, transfer, left=compute, color=TRANSFER, label="transfers")
    loads.axvline(plan.objective, color=LINE, label=f"objective {plan.objective:.6g}")
    if math.isfinite(plan.bound):
        loads.axvline(plan.bound, color=LINE, linestyle=":", label=f"bound {plan.bound:.6g}")
    loads.set_yticks(rows, [plain(device.name) for device in report.devices])
    loads.invert_yaxis()
    unit = "" if plan.time_unit == "unspecified" else f" ({plan.time_unit})"
    loads.set_xlabel(f"load per sample{unit}")
    figure.legend(*loads.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    title = f"{plan.workload_name}: {plan.method}, gap {100 * plan.gap:.2f} %"
    loads.set_title(plain(title), loc="left")

    limited = [device for device in report.devices if math.isfinite(device.capacity_bytes)]
    shares = [
        100 * d.memory_bytes / d.capacity_bytes if d.capacity_bytes and d in limited else 0.0
        for d in report.devices
    ]
    memory.barh(rows, shares, color=MEMORY)
    memory.set_xlim(0, 100)
    memory.set_xlabel("memory used (%)")
    for axes in (loads, memory):
        axes.spines[["top", "right"]].set_visible(False)
    save_picture(figure, path)
