"""A tensor program as a workload: its operators are the nodes, its tensors make the edges."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...common.arrays import Floats
from ...common.choices import Role
from ..cluster import ACCELERATOR, Cluster
from ..workload import Workload
from .program import TensorProgram


def program_workload(
    program: TensorProgram,
    name: str,
    *,
    time_unit: str,
    cluster: Cluster | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Workload:
    """Return a tensor program as a workload with a node for each operator.

    A node holds what it makes, unless that lies in the memory of what it reads; so a parameter or
    an input of the program is a node that takes no time.

    Parameters
    ----------
    program
        The operators with their tensors.
    name
        What people call it.
    time_unit
        Of the operators' times.
    cluster
        The devices to suggest.
    provenance
        Where it comes from.

    Returns
    -------
    Workload
        For `Sharding`, and like any other for all other problems.

    Examples
    --------
    >>> from stagecut.instances.model.sharding.program import Operator, Signature, Tensor
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
