"""A sharding for DTensor: the placements of parameters, inputs and operators, as Python and JSON.

The file needs torch alone. It distributes the parameters of the model and says for each operator of
the traced training graph how its tensors lie; what DTensor would choose itself is not the plan: run
the plan by Stagecut, or redistribute to these placements around each operator (`local_map`).
"""

from __future__ import annotations

import json

from ...instances import InputError, Plan, Role, Sharding, TensorSharding, Workload, program_of
from ..verify.sharding import Lying, check

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
    """Return the text of the Python file; an `InputError` if the plan is no sharding."""
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
    """Return the same as JSON values: how parameters, inputs and operators' tensors lie."""
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


def _placements(how: Lying | list[str]) -> str:
    words = {"B": "Replicate()", "P": "Partial()"}
    return "[" + ", ".join(words.get(one) or f"Shard({one[1:]})" for one in how) + "]"
