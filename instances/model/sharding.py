"""Sharding problem: a tensor program, also as a workload, on a mesh of devices with their links.

With a *placement* parts of the program run on groups of devices, in phases between barriers.
The groups are the devices with the same number along the first axis of the mesh. Parameters are
placed by their innermost placed module. The group of an operator follows from the first of these
rules that names a single group; where rule 1 applies, no other does:

1. an operator that reads parameters, or makes their gradients, directly or by a view, is with them;
2. one on which only gradients of one group depend is in that group;
3. one of the backward pass that reads tensors of the forward pass is with the makers of those;
4. any other is with the makers of all its inputs.

Tensors that depend on no parameter are ignored; their operators are with their readers. Without a
single group an operator is on all devices, as inputs are.

Groups work in parallel within a phase. A phase ends at an operator of all devices, before one that
reads a tensor of another group, and after one that makes the gradient of a parameter of another
group: all groups wait for each other there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ..common.arrays import Floats
from ..common.choices import Optimizer, OrText, Primitive, Role, Rounds, ShardingObjective, choose
from ..common.errors import InputError, quote
from ..common.units import LARGEST, TIME_UNITS, NodeId, check_count
from .cluster import ACCELERATOR, Cluster, Link
from .summary import ByFields
from .tensor_program import TensorProgram
from .workload import Workload

#: Group number of each operator; None for an operator on all devices.
Groups = tuple[int | None, ...]


@lru_cache(maxsize=8)
def operator_groups(program: TensorProgram, placement: tuple[tuple[str, int], ...]) -> Groups:
    """Return the group of each operator; InputError if a module has no parameter."""
    names = [o.name for o in program.operators if o.role is Role.PARAMETER]
    for module, _ in placement:
        if not any(_is_in(name, module) for name in names):
            raise InputError(f"placement: no parameter is in a module {module}; correct its name")
    groups = [
        _group_of(o.name, placement) if o.role is Role.PARAMETER else None
        for o in program.operators
    ]
    of_parameter: dict[int, int | None] = {}  # of each parameter, gradient, and view of one
    updated: list[set[int | None]] = [set() for _ in program.tensors]  # whose gradients depend
    for operator, group in zip(program.operators, groups, strict=True):
        if operator.gradient is not None:
            of_parameter[operator.gradient] = group
            updated[operator.gradient].add(group)
    for operator in reversed(program.operators):
        below = set().union(*(updated[t] for t in operator.outputs))
        for t in operator.inputs:
            updated[t] |= below
        if operator.view and operator.outputs[0] in of_parameter:
            of_parameter[operator.inputs[0]] = of_parameter[operator.outputs[0]]
    free: set[int] = set()  # what depends on no parameter
    for v, operator in enumerate(program.operators):
        if operator.role is Role.PARAMETER:
            of_parameter[operator.outputs[0]] = groups[v]
            continue
        read = [t for t in operator.inputs if t not in free]
        if not read:
            free.update(operator.outputs)
            continue
        if operator.view and read[0] in of_parameter:
            of_parameter[operator.outputs[0]] = of_parameter[read[0]]
        makers = [program.maker[t] for t in read]
        parameters = {of_parameter[t] for t in (*read, *operator.outputs) if t in of_parameter}
        below = set().union(*(updated[t] for t in operator.outputs))
        forward = {groups[u] for u in makers if not program.operators[u].backward}
        saved = forward if operator.backward else set[int | None]()
        for where in [parameters] if parameters else [below, saved, {groups[u] for u in makers}]:
            groups[v] = _only(where) if groups[v] is None else groups[v]
    readers: list[set[int | None]] = [set() for _ in program.tensors]
    for v in range(len(groups) - 1, -1, -1):
        operator = program.operators[v]
        if operator.role is Role.OPERATOR and free.issuperset(operator.outputs):
            groups[v] = _only(set().union(*(readers[t] for t in operator.outputs)))
        for t in operator.inputs:
            readers[t].add(groups[v])
    return tuple(groups)


def _only(where: set[int | None]) -> int | None:
    """Return the only group of a set, None if there are several or none."""
    return next(iter(where)) if len(where) == 1 else None


def _group_of(name: NodeId, placement: Sequence[tuple[str, int]]) -> int | None:
    """Return the group of the innermost placed module of a parameter."""
    own = [(len(module), group) for module, group in placement if _is_in(name, module)]
    return max(own)[1] if own else None


def _is_in(name: NodeId, module: str) -> bool:
    return str(name) == module or str(name).startswith(f"{module}.")


def phases(program: TensorProgram, groups: Groups) -> list[int | None]:
    """Return the phase of each operator of a group; None of others, and of sources."""
    leaves = {
        program.maker[o.gradient]
        for o, group in zip(program.operators, groups, strict=True)
        if o.gradient is not None and groups[program.maker[o.gradient]] != group
    }
    found: list[int | None] = []
    now = 0
    for v, operator in enumerate(program.operators):
        others = {groups[program.maker[t]] for t in operator.inputs} - {None, groups[v]}
        works = operator.role is Role.OPERATOR
        now += works and (groups[v] is None or bool(others))
        found.append(now if works and groups[v] is not None else None)
        now += v in leaves
    return found


def conversion_places(program: TensorProgram, groups: Groups) -> list[int]:
    """Return the operator at which each tensor is converted within its group.

    That is its maker, or for a parameter its first reader in the group.
    """
    found = list(program.maker)
    for v in range(len(groups) - 1, -1, -1):
        for t in program.operators[v].inputs:
            maker = program.maker[t]
            source = program.operators[maker].role is not Role.OPERATOR
            if source and groups[v] is not None and groups[v] == groups[maker]:
                found[t] = v
    return found


def late_gradients(program: TensorProgram, groups: Groups) -> list[list[int]]:
    """Return, for each group, the gradients of its parameters that it makes in the last phase."""
    phase = phases(program, groups)
    last = max((s for s in phase if s is not None), default=None)
    found: dict[int, list[int]] = {}
    for operator, group in zip(program.operators, groups, strict=True):
        t = operator.gradient
        v = -1 if t is None else program.maker[t]
        if t is not None and group is not None and (groups[v], phase[v]) == (group, last):
            found.setdefault(group, []).append(t)
    return [found[j] for j in sorted(found)]


#: Devices of a mesh, and its axes, at most.
MOST_DEVICES, MOST_MESH_AXES = 1 << 20, 3


@dataclass(frozen=True)
class PrimitiveLink(ByFields):
    """Link and algorithm of one collective along an axis of a mesh.

    Parameters
    ----------
    primitive
        ``all-gather``, ``reduce-scatter``, ``all-reduce``, ``all-to-all``, ``gather``, ``scatter``,
        ``reduce`` or ``broadcast``.
    link
        Latency and bandwidth of its messages between two devices.
    algorithm
        ``ring``: p − 1 rounds for p devices, an all-reduce twice as many. ``tree``: ⌈log₂ p⌉ rounds
        instead; there is none for all-to-all.
    axis
        Axis of the mesh, from 0.

    Raises
    ------
    InputError
        If there is no such collective, algorithm or axis.

    References
    ----------
    R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
    MPICH", 2005, sections 3 and 4: rings, recursive doubling and halving, binomial trees.

    Examples
    --------
    >>> import stagecut
    >>> link = stagecut.Link(1e-6, 25e9)
    >>> own = (PrimitiveLink("gather", link), PrimitiveLink("broadcast", link, "tree"))
    >>> mesh = stagecut.DeviceMesh((8,), (stagecut.Link(1e-5, 1e10),), own)
    >>> mesh.priced(Primitive.BROADCAST, 0).algorithm
    'tree'
    """

    primitive: OrText[Primitive]
    link: Link
    algorithm: OrText[Rounds] = Rounds.RING
    axis: int = 0

    def __post_init__(self) -> None:
        choose(self, primitive=Primitive, algorithm=Rounds)
        if isinstance(self.axis, bool) or not isinstance(self.axis, int) or self.axis < 0:
            raise InputError(f"axis: {quote(self.axis)}; it must be a number from 0")
        if (self.primitive, self.algorithm) == (Primitive.ALL_TO_ALL, Rounds.TREE):
            raise InputError("algorithm: an all-to-all has no tree; leave the algorithm out")


@dataclass(frozen=True)
class DeviceMesh(ByFields):
    """Devices in a row, or in a table of rows and columns.

    Parameters
    ----------
    shape
        Devices along each axis, the axis of the slowest link first by convention.
    links
        For each axis the link between two devices that are neighbours along it.
    primitives
        The collectives that have a link or an algorithm of their own; all others use the axis's
        link in a ring. A conversion takes the cheapest collective that performs it.

    Raises
    ------
    InputError
        If there is an axis without devices or without a link, a bandwidth is infinite, or a
        collective is given twice, or for an axis that there is not.

    Examples
    --------
    >>> import stagecut
    >>> slow, fast = stagecut.Link(1e-5, 12.5e9), stagecut.Link(5e-6, 3e11)
    >>> mesh = DeviceMesh((2, 4), (slow, fast))
    >>> mesh.size, mesh.text
    (8, '2x4')
    """

    shape: tuple[int, ...]
    links: tuple[Link, ...]
    primitives: tuple[PrimitiveLink, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "links", tuple(self.links))
        object.__setattr__(self, "primitives", tuple(self.primitives))
        if not 1 <= len(self.shape) <= MOST_MESH_AXES:
            raise InputError(
                f"mesh: {len(self.shape)} axes; it must have 1 to {MOST_MESH_AXES}, such as 2x4"
            )
        for devices in self.shape:
            check_count("mesh", devices, MOST_DEVICES)
        if self.size > MOST_DEVICES:
            raise InputError(f"mesh: {self.size} devices; at most {MOST_DEVICES} are planned for")
        if len(self.links) != len(self.shape):
            raise InputError(
                f"links: {len(self.links)} for {len(self.shape)} axes of the mesh; give one each"
            )
        for link in (*self.links, *(one.link for one in self.primitives)):
            if not isinstance(link, Link) or math.isinf(link.bytes_per_s):
                raise InputError(f"links: {quote(link)}; give a latency and a finite bandwidth")
        for one, times in Counter((one.axis, one.primitive) for one in self.primitives).items():
            if one[0] >= len(self.shape):
                raise InputError(f"primitives: {one[1]}: the mesh has no axis {one[0]}")
            if times > 1:
                raise InputError(f"primitives: {one[1]} is given twice along axis {one[0]}")

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    def priced(self, primitive: Primitive, axis: int) -> PrimitiveLink:
        """Return the link and the algorithm of a collective along an axis."""
        for one in self.primitives:
            if (one.primitive, one.axis) == (primitive, axis):
                return one
        return PrimitiveLink(primitive, self.links[axis], axis=axis)

    @property
    def text(self) -> str:
        """Text of the mesh's shape, such as ``2x4``."""
        return "x".join(map(str, self.shape))


#: Bytes of optimizer state per byte of a parameter.
STATE = {Optimizer.SGD: 0.0, Optimizer.MOMENTUM: 1.0, Optimizer.ADAM: 2.0}


#: Bytes of a bucket of gradients, by default as in PyTorch's data parallelism.
BUCKET_BYTES = 25.0 * 2**20


@dataclass(frozen=True)
class Sharding(ByFields):
    """Choose the signature of every operator, so that the total cost is least.

    Every operator has one signature for each axis of the mesh. A tensor that is read in another
    property than it is made in is converted, once for all its readers in that property. The
    gradient of a parameter arrives in the parameter's property.

    Parameters
    ----------
    mesh
        The devices.
    objective
        ``time``: Σ times of operators on their parts + Σ times of conversions, by latency and
        bandwidth of their axis, without overlap unless `overlap` is set.
        ``distpar``: the published cost, beta · Σ elements that operators read and make, per device,
        + Σ bytes of conversions, of all devices.
    beta
        Weight of the elements for ``distpar``; 0 counts communication alone.
    memory_bytes
        Memory of each device, for parameters, gradients, optimizer state and the activations that
        are kept for the backward pass; None for no limit.
    optimizer
        The optimizer whose state is kept: ``sgd``, ``momentum`` or ``adam``.
    overlap
        Whether gradients are converted beside the backward pass, in buckets, as DDP does; of
        ``time`` alone. A bucket is converted once its last gradient is made and the bucket before
        it is done, its messages' latencies paid once for all of it; other conversions stand in the
        way of computing.
    bucket_bytes
        Bytes of whole gradients at which a bucket is full; for ``overlap`` only.
    placement
        Modules whose parameters, and what computes with them alone, are on one group of devices
        each: pairs of a module such as ``image`` and a number along the first axis of the mesh; of
        modules within each other the inner one counts.
        Groups work beside each other. Of ``time``, without a limit of memory.
    fixed
        Signatures that are given: pairs of an operator's id and a text such as ``S0,B`` (the
        properties of what it reads), ``S0,B->S0``, or ``S0`` for how a parameter lies; on a mesh of
        two axes ``S0xB,BxB->S0xB``.

    Raises
    ------
    InputError
        If an option is none of its choices, or a number is out of range.

    References
    ----------
    "DistPar: Tensor Partitioning for Distributed Neural Network Computing", and the conversion
    costs of OneFlow (Yuan et al., 2021). The objective ``time`` and memory are ours.

    Examples
    --------
    >>> import stagecut
    >>> mesh = stagecut.DeviceMesh((4,), (stagecut.Link(1e-5, 1e10),))
    >>> stagecut.Sharding(mesh, memory_bytes=16e9).objective
    'time'
    """

    name: ClassVar[str] = "sharding"
    mesh: DeviceMesh
    objective: OrText[ShardingObjective] = ShardingObjective.TIME
    beta: float = 1.0
    memory_bytes: float | None = None
    optimizer: OrText[Optimizer] = Optimizer.ADAM
    overlap: bool = False
    bucket_bytes: float = BUCKET_BYTES
    placement: tuple[tuple[str, int], ...] = ()
    fixed: tuple[tuple[NodeId, str], ...] = ()

    def __post_init__(self) -> None:
        choose(self, objective=ShardingObjective, optimizer=Optimizer)
        if self.optimizer not in STATE:
            raise InputError(f"optimizer: {self.optimizer!r} is not one of {', '.join(STATE)}")
        if self.objective == ShardingObjective.TIME and self.beta != 1.0:
            raise InputError("beta: it weighs elements for the objective distpar; leave it out")
        if not isinstance(self.mesh, DeviceMesh):
            raise InputError(f"mesh: {quote(self.mesh)} is not a DeviceMesh")
        if self.overlap and self.objective != ShardingObjective.TIME:
            raise InputError("overlap: it shortens the objective time; leave one of the two out")
        for key, least in (("beta", 0.0), ("memory_bytes", 0.0), ("bucket_bytes", 1.0)):
            value = getattr(self, key)
            if value is None and key == "memory_bytes":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{key}: {quote(value)} is no number")
            if not (least <= value <= LARGEST and math.isfinite(value)):
                raise InputError(f"{key}: {value:g}; it must be from {least:g} to {LARGEST:g}")
            object.__setattr__(self, key, float(value))
        object.__setattr__(self, "fixed", tuple((node, str(text)) for node, text in self.fixed))
        object.__setattr__(self, "placement", tuple((str(m), j) for m, j in self.placement))
        self._check_placement()

    def _check_placement(self) -> None:
        groups = self.mesh.shape[0]
        modules = [module for module, _ in self.placement]
        if twice := [module for k, module in enumerate(modules) if module in modules[:k]]:
            raise InputError(f"placement: {twice[0]} is named twice; leave one of the two out")
        for module, group in self.placement:
            if isinstance(group, bool) or not isinstance(group, int) or not 0 <= group < groups:
                raise InputError(
                    f"placement: {module}: group {quote(group)}; the first axis of the mesh "
                    f"{self.mesh.text} has groups 0 to {groups - 1}"
                )
        if self.placement and self.objective != ShardingObjective.TIME:
            raise InputError("placement: it is of the objective time; leave one of the two out")
        if self.placement and self.memory_bytes is not None:
            raise InputError("placement: groups hold unlike amounts; leave the memory out")

    @property
    def state(self) -> float:
        """Bytes of optimizer state per byte of a parameter."""
        return STATE[Optimizer(self.optimizer)]


def gradient_buckets(program: TensorProgram, problem: Sharding) -> list[list[int]]:
    """Return the gradients of each bucket, in the order in which they are made; none if no overlap.

    A gradient that an operator reads is in no bucket: it is converted when it is made. Each group
    of devices has its own buckets, of the gradients that it makes after the last barrier.
    """
    if not problem.overlap:
        return []
    read = {t for operator in program.operators for t in operator.inputs}
    gradients = [[o.gradient for o in program.operators if o.gradient is not None]]
    if problem.placement:
        gradients = late_gradients(program, operator_groups(program, problem.placement))
    buckets: list[list[int]] = []
    for together in gradients:
        room = 0.0
        for t in sorted({*together} - read, key=lambda t: (program.maker[t], t)):
            if room <= 0:
                buckets.append([])
                room = problem.bucket_bytes
            buckets[-1].append(t)
            room -= program.tensors[t].size_bytes
    return buckets


def program_of(workload: Workload) -> TensorProgram:
    """Return the tensor program of a workload; InputError if it has none, or no unit of time."""
    if workload.program is None:
        raise InputError(
            f"{workload.name}: it has no tensors to shard; write it with profile --train --tensors"
        )
    if workload.time_unit not in TIME_UNITS:
        raise InputError(f"{workload.name}: its unit of time is not known; give one")
    return workload.program


def program_workload(
    program: TensorProgram,
    name: str,
    *,
    time_unit: str,
    cluster: Cluster | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Workload:
    """Return a tensor program as a workload with a node for each operator.

    A node holds its outputs, unless they share the memory of its inputs. A parameter or an input
    of the program is a node that takes no time.

    Parameters
    ----------
    program
        The operators with their tensors.
    name
        Name of the workload.
    time_unit
        Unit of the operators' times.
    cluster
        The devices to suggest.
    provenance
        Origin, as in `Workload`.

    Returns
    -------
    Workload
        For `Sharding`, and as a graph for all other problems.

    Examples
    --------
    >>> from stagecut.instances.model.tensor_program import Operator, Signature, Tensor
    >>> x = Operator("x", (), (0,), (Signature.of("->B"),), role="input")
    >>> relu = Operator("relu", (0,), (1,), (Signature.of("B->B"),), compute=2.0)
    >>> tensors = (Tensor("x", (8, 4)), Tensor("y", (8, 4)))
    >>> program_workload(TensorProgram(tensors, (x, relu)), "small", time_unit="ms").edges.tolist()
    [[0, 1]]
    """
    made = [float(sum(program.tensors[t].size_bytes for t in o.outputs)) for o in program.operators]
    pairs = {
        (program.maker[t], v) for v, o in enumerate(program.operators) for t in o.inputs
    }  # without the arrival of gradients, which would close circles
    size = np.array(made)

    def column(values: list[float]) -> Floats:
        return np.array(values, np.float64)

    return Workload(
        name=name,
        ids=tuple(o.name for o in program.operators),
        edges=np.array(sorted(pairs), np.int64).reshape(-1, 2),
        times={ACCELERATOR: column([o.time for o in program.operators])},
        memory_bytes=np.where([o.view for o in program.operators], 0.0, size),
        transfer=None,
        output_bytes=size,
        backward=np.array([o.backward for o in program.operators], np.bool_),
        time_unit=time_unit,
        extra={
            "parameters": column(
                [
                    float(program.tensors[o.outputs[0]].elements if o.role is Role.PARAMETER else 0)
                    for o in program.operators
                ]
            ),
            "flops": column([o.flops for o in program.operators]),
        },
        cluster=cluster,
        provenance=provenance or {},
        program=program,
    )
