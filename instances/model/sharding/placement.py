"""Placement of a tensor program's parts on groups of devices, and the phases between barriers.

The groups are the devices with the same number along the first axis of the mesh. Parameters are
placed by the innermost placed module that they are of. Operators follow, by the first of these
rules that applies:

1. what reads parameters, or makes their gradients, itself or by a view, is where these are;
2. what only gradients of one group depend on is there;
3. what the backward pass computes from tensors of the forward pass is where those were made;
4. anything else is where all that it reads was made.

What depends on no parameter does not count; it is where its readers are. Where these name more
than one group, an operator is on all devices, as inputs are.

Groups work beside each other within a phase. All wait for each other at an operator of all devices,
before one that reads what another group has made, and after one that makes the gradient of a
parameter that is not there: a phase ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ...common.choices import Role
from ...common.errors import InputError
from ...common.units import NodeId
from .program import TensorProgram

#: Of each operator the number of its group; None on all devices.
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
    """Return the one group that there is, None if there are several or none."""
    return next(iter(where)) if len(where) == 1 else None


def _group_of(name: NodeId, placement: Sequence[tuple[str, int]]) -> int | None:
    """Return the group of the innermost placed module that a parameter is of."""
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
    """Return the operator with which each tensor is converted within its group.

    That is its maker, of a parameter the first that reads it there.
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
    """Return of each group the gradients of its parameters that it makes in the last phase."""
    phase = phases(program, groups)
    last = max((s for s in phase if s is not None), default=None)
    found: dict[int, list[int]] = {}
    for operator, group in zip(program.operators, groups, strict=True):
        t = operator.gradient
        v = -1 if t is None else program.maker[t]
        if t is not None and group is not None and (groups[v], phase[v]) == (group, last):
            found.setdefault(group, []).append(t)
    return [found[j] for j in sorted(found)]
