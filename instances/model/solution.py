"""Solutions of each problem: placements, calls, stages, mappings, shardings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..common.arrays import Ints, checked, frozen
from ..common.errors import InputError
from .cluster import Cluster


@dataclass(frozen=True, eq=False)
class Placement:
    """Solution of a throughput problem.

    Parameters
    ----------
    device
        Shape (n,): number of the device of each node.
    order
        The devices in use, in the order of their stages, if data is relayed from stage to stage;
        else ().

    Examples
    --------
    >>> Placement([0, 0, 1]).device.tolist()
    [0, 0, 1]
    """

    device: Ints
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", checked(self.device, np.int64, "device"))
        object.__setattr__(self, "order", tuple(int(d) for d in self.order))


@dataclass(frozen=True, eq=False)
class PipelinePlacement:
    """Solution of an iteration problem.

    Parameters
    ----------
    stage
        Shape (n,): number of the stage of each node. With a contiguous split the stages are
        numbered in the order of the pipeline; else each is the part of one device, in any order.
    devices
        Number of the device of each stage.

    Examples
    --------
    >>> PipelinePlacement([0, 0, 1], devices=(2, 0)).device.tolist()
    [2, 2, 0]
    """

    stage: Ints
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage", checked(self.stage, np.int64, "stage"))
        object.__setattr__(self, "devices", tuple(int(d) for d in self.devices))

    @property
    def device(self) -> Ints:
        """Shape (n,): number of the device of each node."""
        return frozen(np.asarray(self.devices, np.int64)[self.stage], "int64")


@dataclass(frozen=True, eq=False)
class CallPlacement:
    """Solution of a latency problem.

    Parameters
    ----------
    device
        Shape (n,): number of the device of each node; for the pool of CPUs any device of its
        kind, by convention the first.
    call
        Shape (n,): number of the node's call on its accelerator, in the order in which the calls
        run; −1 for nodes on CPUs.

    Examples
    --------
    >>> CallPlacement(device=[0, 0, 1], call=[0, 1, 0]).call.tolist()
    [0, 1, 0]
    """

    device: Ints
    call: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", checked(self.device, np.int64, "device"))
        object.__setattr__(self, "call", checked(self.call, np.int64, "call"))


@dataclass(frozen=True)
class Stage:
    """One stage of a training plan.

    Parameters
    ----------
    nodes
        Numbers of its nodes, increasing.
    configuration
        For each of them, the number of its configuration in `Layers`.
    replicas
        Data-parallel degree d.
    degree
        Tensor-parallel degree t.
    kind
        Kind of its d·t devices in the cluster.

    Examples
    --------
    >>> Stage(nodes=(0, 1), configuration=(0, 2), replicas=2, degree=1, kind=0).replicas
    2
    """

    nodes: tuple[int, ...]
    configuration: tuple[int, ...]
    replicas: int
    degree: int
    kind: int = 0


@dataclass(frozen=True, eq=False)
class StagePlacement:
    """Solution of a training problem: stages in pipeline order.

    Parameters
    ----------
    stages
        First to last.
    device
        Shape (n,): number of the first device of each node's stage; the devices of a stage
        follow each other, and so do stages of one kind.

    Examples
    --------
    >>> stage = Stage(nodes=(0, 1), configuration=(0, 2), replicas=2, degree=1, kind=0)
    >>> StagePlacement((stage,), [0, 0]).device.tolist()
    [0, 0]
    """

    stages: tuple[Stage, ...]
    device: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "device", checked(self.device, np.int64, "device"))


def in_stages(stages: Iterable[Stage], cluster: Cluster) -> StagePlacement:
    """Return the stages, first to last, with devices assigned in order, kind by kind.

    Examples
    --------
    >>> import stagecut
    >>> stages = [Stage((0,), (0,), replicas=2, degree=1, kind=0), Stage((1,), (1,), 1, 1, 0)]
    >>> in_stages(stages, stagecut.accelerators_and_cpus(3)).device.tolist()
    [0, 2]
    """
    stages = tuple(stages)
    counts = [kind.count for kind in cluster.kinds]
    free = [sum(counts[:k]) for k in range(len(counts))]
    device = np.zeros(sum(len(stage.nodes) for stage in stages), np.int64)
    for stage in stages:
        device[list(stage.nodes)] = min(free[stage.kind], cluster.size - 1)
        free[stage.kind] += stage.replicas * stage.degree
    return StagePlacement(stages, device)


@dataclass(frozen=True, eq=False)
class ReplicaPlacement:
    """Solution of a mapping problem.

    Parameters
    ----------
    stage
        Shape (n,): stage of each node.
    slots
        Shape (S, R): device of each replica, a stage's replicas in the order of their ring.
    sends_to
        Shape (S−1, R): position, in the next stage's row of `slots`, of the replica to which
        each replica sends.

    Examples
    --------
    >>> mapped = ReplicaPlacement(stage=[0, 0, 1], slots=[[0, 1], [2, 3]], sends_to=[[0, 1]])
    >>> mapped.device.tolist()
    [0, 0, 2]
    """

    stage: Ints
    slots: Ints
    sends_to: Ints

    def __post_init__(self) -> None:
        for key in ("stage", "slots", "sends_to"):
            object.__setattr__(self, key, frozen(getattr(self, key), "int64"))

    @property
    def device(self) -> Ints:
        """Shape (n,): first device of each node's stage."""
        first: Ints = self.slots[self.stage, 0]
        return first


@dataclass(frozen=True, eq=False)
class TensorSharding:
    """Solution of a sharding problem.

    Parameters
    ----------
    signature
        Shape (n, axes of the mesh): for each operator the number of its signature along each axis.

    Examples
    --------
    >>> TensorSharding([[0, 1], [2, 1]]).device.tolist()
    [0, 0]
    """

    signature: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "signature", frozen(self.signature, "int64"))

    @property
    def device(self) -> Ints:
        """Shape (n,): the first device; every device takes part in each operator."""
        return frozen(np.zeros(len(self.signature), np.int64), "int64")


Solution = (
    Placement
    | PipelinePlacement
    | CallPlacement
    | StagePlacement
    | ReplicaPlacement
    | TensorSharding
)


def on_cluster(solution: Solution, old: Cluster, new: Cluster) -> Solution:
    """Return a solution with each device replaced by that of the same kind and number.

    A mapping's devices are its topology's, a sharding's its mesh's, and stay as they are. Memories
    of `new` are not checked; InputError if `new` lacks a device in use.

    Examples
    --------
    >>> import stagecut
    >>> two, three = (stagecut.accelerators_and_cpus(n, cpus=1) for n in (2, 3))
    >>> on_cluster(Placement([0, 1, 2]), two, three).device.tolist()
    [0, 1, 3]
    """
    if isinstance(solution, ReplicaPlacement | TensorSharding):
        return solution
    kinds = {kind.name: k for k, kind in enumerate(new.kinds)}
    kind_to = [kinds.get(kind.name, -1) for kind in old.kinds]
    if isinstance(solution, StagePlacement):
        for stage in solution.stages:
            if kind_to[stage.kind] < 0:
                raise InputError(f"the cluster has no {old.kinds[stage.kind].name}")
        return in_stages((replace(s, kind=kind_to[s.kind]) for s in solution.stages), new)
    first = np.cumsum([0, *(kind.count for kind in new.kinds)])
    to = []
    for kind, k in zip(old.kinds, kind_to, strict=True):
        count = new.kinds[k].count if k >= 0 else 0
        to += [int(first[k]) + i if i < count else -1 for i in range(kind.count)]
    used = solution.devices if isinstance(solution, PipelinePlacement) else solution.device.tolist()
    for d in used:
        if to[d] < 0:
            raise InputError(f"it uses {old.devices[d].name}, which the cluster has not")
    moved = np.array(to, np.int64)
    match solution:
        case PipelinePlacement():
            return replace(solution, devices=tuple(to[d] for d in solution.devices))
        case CallPlacement():
            return replace(solution, device=moved[solution.device])
        case Placement():
            order = tuple(to[d] for d in solution.order)
            return Placement(moved[solution.device], order)
