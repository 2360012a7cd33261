"""Kernels are called with arguments of one type each: another one compiles them again."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from cases import random_case
from conformance import TASKS, task

from stagecut import Latency, Limits, solve
from stagecut.instances.common.kernel import Kernel, load_numba

#: Ends a search; what is begun is enough here.
LIMITS = Limits(seconds=60, nodes=4)


def test_each_kernel_gets_arguments_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room and with little, with edges and without, colours in one case and not in another."""
    types = defaultdict(set)
    call, typeof = Kernel.__call__, load_numba().typeof

    def typed(kernel: Kernel, *arguments: Any) -> Any:
        if not kernel.inner:
            types[kernel].add(tuple(map(typeof, arguments)))
        return call(kernel, *arguments)

    monkeypatch.setattr(Kernel, "__call__", typed)
    for problem in TASKS:
        for room, edges in ((np.inf, None), (3.0, None), (0.5, None), (np.inf, [(0, 1)])):
            of = task(problem, [1.0, 2.0, 3.0, 2.0], edges, room=room)
            solve(of.workload, of.cluster, of.problem, limits=LIMITS)
    for seed in range(6):
        workload, cluster = random_case(seed, max_nodes=6, max_kinds=2)
        solve(workload, cluster, Latency(1), method="dp", limits=LIMITS)
    assert len(types) > 15
    several = {kernel.__qualname__: found for kernel, found in types.items() if len(found) > 1}
    assert not several
