"""Plans from splits made elsewhere: verified objectives, no bounds."""

from __future__ import annotations

import math
from pathlib import Path

from ..instances import Cluster, InputError, Plan, Throughput, Workload
from ..instances.formats.files import load_split
from ..runtime import evaluate


def plan_from_split(
    path: str | Path,
    workload: Workload,
    cluster: Cluster | None = None,
    problem: Throughput | None = None,
) -> Plan:
    """Return the plan that a split file (``{"fpgas": [{"nodes": […]}], "cpus": […]}``) describes.

    Parameters
    ----------
    path
        The split file.
    workload
        What it splits; nodes that the file leaves out follow their colour.
    cluster
        Whose devices it numbers; default: the one that the workload suggests.
    problem
        What it is judged by; default: `Throughput()`.

    Returns
    -------
    Plan
        Without a bound.

    Raises
    ------
    InputError
        If the file is broken, does not fit, or breaks a rule of the problem.

    Examples
    --------
    >>> import json, stagecut
    >>> from pathlib import Path
    >>> workload = stagecut.load("gpt2-xl")
    >>> parts = [{"nodes": list(workload.ids[:20])}, {"nodes": list(workload.ids[20:])}]
    >>> _ = Path("split.json").write_text(json.dumps({"fpgas": parts}))
    >>> stagecut.api.plan_from_split("split.json", workload).method
    'split file'
    """
    cluster = cluster or workload.cluster
    if cluster is None:
        raise InputError(f"{workload.name}: it suggests no cluster; give one")
    problem = problem or Throughput()
    placement = load_split(path, workload, cluster)
    report = evaluate(workload, cluster, problem, placement)
    if report.violations:
        raise InputError(f"{path}: {report.violations[0]}; correct the split")
    return Plan(
        workload_name=workload.name,
        workload_fingerprint=workload.fingerprint,
        cluster=cluster,
        problem=problem,
        solution=placement,
        objective=report.objective,
        bound=-math.inf,
        method="split file",
        time_unit=workload.time_unit,
        provenance={"file": Path(path).name},
    )
