"""The data of latency's integer program: nodes, calls, and what they take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...instances import Latency
from ...instances.common.arrays import Floats
from ..task import Task
from .graph import LatencyGraph, latency_graph

#: Number of the CPUs among calls.
CPUS = -1


@dataclass(frozen=True, eq=False)
class LatencyData:
    """What the program is stated over: n nodes, S calls, times in units of `scale`.

    Parameters
    ----------
    task, graph
        The task, and its costs.
    calls
        (device, number) of each call s.
    unit
        Shape (n,): which x stands for each node.
    scale
        Time units of the workload per time unit of the program.
    horizon, floor
        H, and what no plan ends before, in the program's time unit.
    """

    task: Task[Latency]
    graph: LatencyGraph
    calls: tuple[tuple[int, int], ...]
    unit: tuple[int, ...]
    scale: float
    horizon: float
    floor: float

    @property
    def linked(self) -> bool:
        """Whether accelerators are linked: then they differ, and (6) has other transfers."""
        return bool(self.task.cluster.links)

    @cached_property
    def units(self) -> list[int]:
        """Those that have an x."""
        return sorted(set(self.unit))

    @cached_property
    def accelerators(self) -> list[int]:
        """Devices with calls."""
        return sorted({d for d, _ in self.calls})

    @cached_property
    def p(self) -> Floats:
        """Shape (S, n): time of each node in each call; `inf` where it is unsupported."""
        kind = [int(self.task.costs.kind_of[d]) for d, _ in self.calls]
        return self.graph.compute[[self.graph.kinds.index(k) for k in kind]] / self.scale

    @cached_property
    def c(self) -> Floats:
        """Shape (S, n): time of a transfer of each node's output at each call."""
        kind = [int(self.task.costs.kind_of[d]) for d, _ in self.calls]
        return self.graph.transfer[[self.graph.kinds.index(k) for k in kind]] / self.scale

    @cached_property
    def q(self) -> Floats:
        """Shape (n,): time of each node on a CPU; `inf` where it is unsupported."""
        return self.graph.cpu / self.scale

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """Edges whose ends can be in different calls."""
        unit = self.unit
        return [(u, v) for u, v in self.task.workload.edges.tolist() if unit[u] != unit[v]]

    @cached_property
    def senders(self) -> list[int]:
        """Nodes whose output may move."""
        return sorted({u for u, _ in self.edges})


def latency_data(task: Task[Latency], horizon: float, floor: float) -> LatencyData:
    """Return the data of the program; the parameters are those of `milp.latency_model`."""
    workload, costs, calls = task.workload, task.costs, task.problem.calls
    accelerators = [d for d, k in enumerate(costs.kind_of.tolist()) if not costs.host[k]]
    unit = list(range(workload.n))
    if calls == 1:
        for members in workload.colour_classes:
            for v in members:
                unit[v] = min(members)
    scale = horizon / 1000.0 if horizon > 0 else 1.0
    return LatencyData(
        task=task,
        graph=latency_graph(task, whole_colours=False),
        calls=tuple((d, j) for d in accelerators for j in range(calls)),
        unit=tuple(unit),
        scale=scale,
        horizon=horizon / scale,
        floor=floor / scale,
    )
