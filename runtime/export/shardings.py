"""Shardings for DTensor and torchtitan, as Python and JSON.

DTensor's file needs torch alone. It distributes the parameters of the model, and lists the
placements of each operator's tensors in the traced training graph. DTensor itself would choose
others: run the plan by Stagecut, or redistribute to these around each operator (`local_map`).

torchtitan has replicas of a model, each with its own samples, and fully sharded parameters, which
are gathered where they are used. Divisions of single products are code of its models, not of its
configuration: shardings with such are refused.
"""

from __future__ import annotations

import json

from ...instances import InputError, Plan, Role, Sharding, TensorSharding, Workload, program_of
from ..simulate.sharded import Properties
from ..verify.sharding import ShardingReport, check
from .torchtitan import assigned, configured

_HEAD = '''"""{title}.

Placements of DTensor on a mesh of {mesh} devices, by axis: parameters, inputs, operators.

    model = distribute(make_model(), init_mesh())
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

MESH = {shape!r}

'''

_TAIL = '''

def init_mesh(device: str = "cuda") -> DeviceMesh:
    """Return the mesh; run by torchrun on {size} processes."""
    return init_device_mesh(device, MESH)


def distribute(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Replace the parameters of a model by their parts, as the plan has them."""
    shared: dict[int, nn.Parameter] = {{}}
    for name, module in model.named_modules():
        for key, value in list(module.named_parameters(recurse=False)):
            whole = f"{{name}}.{{key}}" if name else key
            if id(value) not in shared:
                made = distribute_tensor(value.detach(), mesh, PARAMETERS[whole])
                shared[id(value)] = nn.Parameter(made, requires_grad=value.requires_grad)
            module.register_parameter(key, shared[id(value)])
    return model
'''


def dtensor_python(workload: Workload, plan: Plan) -> str:
    """Return the text of the Python file; raises `InputError` if the plan is no sharding."""
    said = dtensor_json(workload, plan)
    problem = plan.problem
    assert isinstance(problem, Sharding)
    text = _HEAD.format(
        title=json.dumps(f"{workload.name}, planned by {plan.method}")[1:-1],
        mesh=problem.mesh.text,
        shape=problem.mesh.shape,
    )
    for name in ("parameters", "inputs"):
        rows = "".join(
            f"    {key!r}: {_placements(how)},\n"
            for key, how in said[name].items()  # type: ignore[attr-defined]
        )
        text += f"{name.upper()} = {{\n{rows}}}\n\n"
    rows = "".join(
        f"    {key!r}: ({_row(one['inputs'])}, {_row(one['outputs'])}),\n"
        for key, one in said["operators"].items()  # type: ignore[attr-defined]
    )
    text += "#: By the operator's name in the traced graph: what it reads, what it makes.\n"
    text += f"OPERATORS = {{\n{rows}}}\n" + _TAIL.format(size=problem.mesh.size)
    return text


def dtensor_json(workload: Workload, plan: Plan) -> dict[str, object]:
    """Return the placements of parameters, inputs and operators' tensors as JSON values."""
    problem, solution = plan.problem, plan.solution
    if not isinstance(problem, Sharding) or not isinstance(solution, TensorSharding):
        raise InputError(f"dtensor: the plan is for {problem.name}; it takes shardings")
    if problem.placement:
        raise InputError("dtensor: it has no groups of devices; plan without placement")
    plan.check_made_for(workload)
    program = program_of(workload)
    report = check(workload, plan.cluster, problem, solution)
    sources = {
        role: {
            str(o.name): list(report.lying[o.outputs[0]])
            for o in program.operators
            if o.role is role
        }
        for role in (Role.PARAMETER, Role.INPUT)
    }
    operators = {}
    for o, row in zip(program.operators, solution.signature.tolist(), strict=True):
        if o.role is Role.OPERATOR:
            sides = [o.signatures[k].text.split("->") for k in row]
            read = [[p for p in side[0].split(",") if p] for side in sides]
            made = [side[1].split(",") for side in sides]
            operators[str(o.name)] = {
                "inputs": [list(one) for one in zip(*read, strict=True)],
                "outputs": [list(one) for one in zip(*made, strict=True)],
            }
    return {
        "mesh": list(problem.mesh.shape),
        "parameters": sources[Role.PARAMETER],
        "inputs": sources[Role.INPUT],
        "operators": operators,
    }


def _row(tensors: list[list[str]]) -> str:
    return "[" + ", ".join(map(_placements, tensors)) + "]"


def _placements(how: Properties | list[str]) -> str:
    words = {"B": "Replicate()", "P": "Partial()"}
    return "[" + ", ".join(words.get(one) or f"Shard({one[1:]})" for one in how) + "]"


_NAME = "torchtitan"


def torchtitan_sharding(workload: Workload, plan: Plan) -> str:
    """Return a Python module that puts the degrees and the batch into a `Trainer.Config`.

    Raises `InputError`, with the difference, if an axis of the mesh has neither copies nor parts of
    all parameters.
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
    """Raise InputError unless every device computes the forward pass on its own samples."""
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
