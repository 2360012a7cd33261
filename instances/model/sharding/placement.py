"""Placement of a tensor program's parts on groups of devices, and the phases between barriers.

The groups are the devices with the same number along the first axis of the mesh. Parameters are
placed by the module that they are of. An operator is placed with them

1. if all parameters that it depends on are of one group,
2. else if all gradients that depend on it are of parameters of one group,
3. or if it depends on no parameter, and all that read what it makes are of one group.

All other operators, and inputs, are on all devices. Groups work beside each other within a phase.
All wait for each other at an operator of all devices, before one that reads what another group has
made, and after one that makes the gradient of a parameter that is not there: a phase ends.
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
    found = [_group_of(operator.name, placement) for operator in program.operators]
    of_parameters: list[int | None] = [None] * len(found)
    above, below = [0] * len(found), [0] * len(found)  # groups as bits; 1 for all devices
    readers: list[list[int]] = [[] for _ in found]
    for v, operator in enumerate(program.operators):
        if operator.role is Role.PARAMETER:
            of_parameters[v] = found[v]
            above[v] = _bit(found[v])
            if operator.gradient is not None:
                below[program.maker[operator.gradient]] |= above[v]
        for t in operator.inputs:
            above[v] |= above[program.maker[t]]
            readers[program.maker[t]].append(v)
    for module, _ in placement:
        if not any(
            operator.role is Role.PARAMETER and _is_in(operator.name, module)
            for operator in program.operators
        ):
            raise InputError(f"placement: no parameter is in a module {module}; correct its name")
    groups = of_parameters
    for v in range(len(found) - 1, -1, -1):
        operator = program.operators[v]
        for u in readers[v]:
            below[v] |= below[u]
        if operator.role is not Role.OPERATOR:
            continue
        for bits in (above[v], below[v]):
            if groups[v] is None and bits > 1 and bits & (bits - 1) == 0:
                groups[v] = bits.bit_length() - 2
        if groups[v] is None and above[v] == 0:
            by = {groups[u] for u in readers[v]}
            groups[v] = by.pop() if len(by) == 1 else None
    return tuple(groups)


def _group_of(name: NodeId, placement: Sequence[tuple[str, int]]) -> int | None:
    return next((group for module, group in placement if _is_in(name, module)), None)


def _is_in(name: NodeId, module: str) -> bool:
    return str(name) == module or str(name).startswith(f"{module}.")


def _bit(group: int | None) -> int:
    return 1 if group is None else 2 << group


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


def conversion_phases(
    program: TensorProgram, groups: Groups, phase: Sequence[int | None]
) -> list[int | None]:
    """Return the phase in which a tensor of a group is converted within it; None of others.

    What an operator makes is converted then, a parameter before the first that reads it there.
    """
    found = [phase[v] for v in program.maker]
    for v, operator in enumerate(program.operators):
        for t in operator.inputs:
            if found[t] is None and groups[v] is not None and groups[v] == groups[program.maker[t]]:
                found[t] = phase[v]
    return found
