"""Shardings for torchtitan: replicated, fully sharded, or both.

torchtitan knows copies of a model, each of which computes on its own samples, and fully sharded
parameters, put together where they are used. How it splits single products is code of each of its
models, not of its configuration: shardings that do so are refused.
"""

from __future__ import annotations

from ...instances import (
    InputError,
    Plan,
    Role,
    Sharding,
    TensorSharding,
    Workload,
    program_of,
)
from ..verify.sharding import ShardingReport, check
from .torchtitan import assigned, configured

_NAME = "torchtitan"


def torchtitan_sharding(workload: Workload, plan: Plan) -> str:
    """Return a Python module that puts the degrees and the batch into a `Trainer.Config`.

    Raises `InputError` if an axis of the mesh is neither one of copies nor one of parts: what
    differs.
    """
    problem, solution = plan.problem, plan.solution
    assert isinstance(problem, Sharding)
    assert isinstance(solution, TensorSharding)
    if problem.placement:
        raise InputError(f"{_NAME}: it has no groups of devices; plan without placement")
    plan.check_made_for(workload)
    report = check(workload, plan.cluster, problem, solution)
    shape = problem.mesh.shape
    sharded = [_is_sharded(workload, report, axis, shape[axis]) for axis in range(len(shape))]
    for axis in range(len(shape)):
        _check_samples(workload, report, axis)
    degrees = {False: 1, True: 1}
    for devices, parts in zip(shape, sharded, strict=True):
        degrees[parts] *= devices
    if len(shape) > 1 and sharded != sorted(sharded):
        raise InputError(f"{_NAME}: it shards within copies; put the axis of copies first")
    program = program_of(workload)
    samples = {
        program.tensors[o.outputs[0]].shape[0]
        for o in program.operators
        if o.role is Role.INPUT and program.tensors[o.outputs[0]].shape
    }
    if len(samples) > 1:
        raise InputError(f"{_NAME}: the inputs have {sorted(samples)} samples; it has one size")
    fields = {
        "data_parallel_replicate_degree": degrees[False],
        "data_parallel_shard_degree": degrees[True],
        "tensor_parallel_degree": 1,
        "pipeline_parallel_degree": 1,
    }
    lines = assigned("parallelism", fields)
    for n in samples:
        lines += assigned("training", {"local_batch_size": n // problem.mesh.size})
    words = f"{workload.name} on a mesh of {problem.mesh.text}"
    return configured(words, problem.mesh.size, lines)


def _is_sharded(workload: Workload, report: ShardingReport, axis: int, devices: int) -> bool:
    """Whether all divisible parameters are split by axis 0 along an axis of the mesh."""
    program = program_of(workload)
    found = {}
    for operator in program.operators:
        tensor = operator.outputs[0]
        shape = program.tensors[tensor].shape
        if operator.kind == "parameter" and shape and shape[0] % devices == 0:
            found[report.lying[tensor][axis]] = operator.name
    if not set(found) <= {"S0"} and not set(found) <= {"B"}:
        names = ", ".join(f"{name} is {how}" for how, name in sorted(found.items())[:2])
        raise InputError(
            f"{_NAME}: along axis {axis} of the mesh {names}; its configuration says copies of "
            "all parameters or parts of all; export --to dtensor says the rest"
        )
    return set(found) == {"S0"}


def _check_samples(workload: Workload, report: ShardingReport, axis: int) -> None:
    """Check that every device computes the forward pass on its own samples."""
    program = program_of(workload)
    of_samples = {o.outputs[0] for o in program.operators if o.role is Role.INPUT}
    for operator in program.operators:
        if operator.backward or not of_samples.intersection(operator.inputs):
            continue
        of_samples.update(operator.outputs)
        tensor = operator.outputs[0]
        how = report.lying[tensor][axis]
        if program.tensors[tensor].shape and how != "S0":
            raise InputError(
                f"{_NAME}: along axis {axis} of the mesh {operator.name} is {how}, and each "
                "device computes its own samples there; export --to dtensor says the rest"
            )
