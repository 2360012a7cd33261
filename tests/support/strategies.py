"""Hypothesis strategies of small workloads, clusters and problems, so that failures shrink.

The same ideas as in `cases.random_case` (colours, memory limits, CPU-only nodes, backward passes,
free nodes, ties), but every number is drawn by itself: a failing case shrinks to fewer nodes, fewer
edges and zeros.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from training_cases import random_training_case

from stagecut import Cluster, DeviceKind, Latency, PipelineJob, Throughput, Workload
from stagecut.instances import Split

#: Small whole numbers, which make ties, or others of about their size.
AMOUNTS = st.one_of(st.integers(0, 5).map(float), st.floats(0.01, 5.0))


def examples(few: int) -> Callable[[Any], Any]:
    """Return what makes a property run on a few examples, the same each time.

    With ``STAGECUT_EXAMPLES`` in the environment it runs on so many, others each time.
    """
    many = os.environ.get("STAGECUT_EXAMPLES")
    return settings(
        max_examples=int(many or few),
        derandomize=many is None,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


@st.composite
def workloads(draw: st.DrawFn, max_nodes: int = 6) -> Workload:
    """Draw a workload whose nodes are in no particular order."""
    n = draw(st.integers(1, max_nodes))
    rank = draw(st.permutations(range(n)))
    pairs = list(itertools.combinations(range(n), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * n)) if pairs else []
    backward = np.zeros(n, np.bool_)
    backward[rank[n - draw(st.integers(0, n // 2)) :]] = True
    colours = draw(st.lists(st.integers(-1, n // 2), min_size=n, max_size=n))
    used = sorted({c for c in colours if c >= 0})
    compute = _amounts(draw, n)
    only_cpu = draw(st.lists(st.sampled_from([False] * 7 + [True]), min_size=n, max_size=n))
    return Workload(
        name="drawn",
        ids=tuple(range(10, 10 + n)),
        edges=np.array([(rank[u], rank[v]) for u, v in edges], dtype=np.int64).reshape(-1, 2),
        times={
            "accelerator": np.where(only_cpu, math.inf, compute),
            "cpu": compute * draw(st.sampled_from([1.0, 3.0, 10.0])),
        },
        memory_bytes=np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), float),
        transfer=_amounts(draw, n),
        backward=backward,
        colours=np.array([used.index(c) if c >= 0 else -1 for c in colours]),
        colour_labels=tuple(f"colour {c}" for c in used),
    )


@st.composite
def clusters(draw: st.DrawFn, workload: Workload, max_accelerators: int = 2) -> Cluster:
    """Draw a cluster on which the workload may fit: up to two kinds of accelerators, and a CPU."""
    total = max(1.0, float(workload.memory_bytes.sum()))
    counts = [draw(st.integers(0, max_accelerators)), draw(st.integers(0, 1))]
    kinds = [
        DeviceKind(
            f"acc{k}",
            count,
            memory_bytes=total * draw(st.sampled_from([math.inf, 1.0, 0.6, 0.3])),
            times="accelerator",
            slowdown=draw(st.sampled_from([1.0, 0.5, 2.0])) if k else 1.0,
        )
        for k, count in enumerate(counts)
    ]
    cores = draw(st.integers(0 if any(counts) else 1, 1))
    return Cluster((*kinds, DeviceKind("cpu", cores, host=True)))


def throughputs(*splits: Split) -> st.SearchStrategy[Throughput]:
    """Problems of throughput with these splits; default: every one."""
    return st.builds(
        Throughput,
        split=st.sampled_from(splits or tuple(Split)),
        cpu_split=st.sampled_from(["contiguous", "free"]),
        pipeline=st.sampled_from(["pipedream", "gpipe"]),
        overlap=st.booleans(),
    )


def latencies() -> st.SearchStrategy[Latency]:
    """Problems of latency with few calls."""
    return st.builds(Latency, calls=st.integers(1, 2))


@st.composite
def placed(draw: st.DrawFn, max_nodes: int = 6) -> tuple[Workload, Cluster]:
    """Draw a workload and a cluster for it."""
    workload = draw(workloads(max_nodes))
    return workload, draw(clusters(workload))


def trained(max_nodes: int = 4) -> st.SearchStrategy[tuple[Workload, Cluster, PipelineJob]]:
    """Training cases; they shrink in their sizes, and are drawn by seed otherwise."""
    return st.builds(
        random_training_case,
        st.integers(0, 10_000),
        max_nodes=st.integers(1, max_nodes),
        max_devices=st.integers(2, 4),
        kinds=st.integers(1, 2),
    )


def _amounts(draw: st.DrawFn, n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(draw(st.lists(AMOUNTS, min_size=n, max_size=n)))
