"""Sharding problem: the layout of every tensor of a program on a mesh of devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...common.choices import Optimizer, OrText, ShardingObjective, choose
from ...common.errors import InputError, quote
from ...common.units import LARGEST, TIME_UNITS, NodeId
from ..summary import ByFields
from .mesh import DeviceMesh
from .placement import late_gradients, operator_groups
from .program import TensorProgram

if TYPE_CHECKING:
    from ..workload import Workload


#: Bytes of optimizer state per byte of a parameter.
STATE = {Optimizer.SGD: 0.0, Optimizer.MOMENTUM: 1.0, Optimizer.ADAM: 2.0}


#: Of a bucket of gradients, as PyTorch's data parallelism has it.
BUCKET_BYTES = 25.0 * 2**20


@dataclass(frozen=True)
class Sharding(ByFields):
    """Choose for every operator how its tensors lie on the devices, at least cost.

    Every operator has one signature for each axis of the mesh. Where a tensor is read in another
    property than it is made in, it is converted, once for all that read it so. A parameter lies in
    one property, and its gradient arrives in that one.

    Parameters
    ----------
    mesh
        The devices.
    objective
        ``time``: Σ times of operators on their parts + Σ times of conversions, by latency and
        bandwidth of the axis that they run along, nothing overlapped unless asked for.
        ``distpar``: the published cost, beta · Σ elements that operators read and make, per device,
        + Σ bytes of conversions, of all devices.
    beta
        Weight of the elements for ``distpar``; 0 counts communication alone.
    memory_bytes
        Of each device, for parameters, gradients, optimizer state and the activations that are
        kept for the backward pass; None for no limit.
    optimizer
        Whose state is kept: ``sgd``, ``momentum`` or ``adam``.
    overlap
        Whether gradients are converted beside the backward pass, in buckets, as DDP does; of
        ``time`` alone. A bucket is converted once its last gradient is made and the bucket before
        it is done, its messages' latencies paid once for all of it; other conversions stand in the
        way of computing.
    bucket_bytes
        Of whole gradients, from which on a bucket is full; of ``overlap`` alone.
    placement
        Modules whose parameters, and what computes with them alone, are on one group of devices
        each: pairs of a module such as ``image`` and a number along the first axis of the mesh.
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
        if not isinstance(self.overlap, bool):
            raise InputError(f"overlap: {quote(self.overlap)}; it must be true or false")
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
    def name(self) -> str:
        """Name of the problem in files and tables."""
        return "sharding"

    @property
    def state(self) -> float:
        """Bytes of optimizer state per byte of a parameter."""
        return STATE[Optimizer(self.optimizer)]


def gradient_buckets(program: TensorProgram, problem: Sharding) -> list[list[int]]:
    """Return the gradients of each bucket, in the order in which they are made; none if no overlap.

    A gradient that an operator reads, too, is in none: it is converted when it is made. Groups of
    devices have buckets of their own, of what they make after the last barrier.
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
    """Return the tensor program of a workload.

    Parameters
    ----------
    workload
        From `program_workload`, `tensor_program`, or a file of a tensor program.

    Returns
    -------
    TensorProgram
        Its operators are the nodes.

    Raises
    ------
    InputError
        If it has none, or no unit of time.

    Examples
    --------
    >>> import stagecut
    >>> try:
    ...     program_of(stagecut.load("gpt2-xl"))
    ... except stagecut.InputError as error:
    ...     print("no tensors" in str(error))
    True
    """
    if workload.program is None:
        raise InputError(
            f"{workload.name}: it has no tensors to shard; write it with profile --train --tensors"
        )
    if workload.time_unit not in TIME_UNITS:
        raise InputError(f"{workload.name}: its unit of time is not known; give one")
    return workload.program
