"""From autograd's steps to backward operators, and which of them hold gradients."""

from __future__ import annotations

from .draft import Draft
from .graph import Flow, TracedOperator
from .held_memory import hold_parameters


def add_backward(draft: Draft) -> None:
    """Add backward operators, those that compute nothing skipped."""
    steps = draft.recording.backward
    number: dict[int, int] = {}
    names: dict[str, int] = {}
    for i, step in enumerate(steps):
        if not step.kernels:
            continue
        partner = _partner(draft, step.forward)
        made_by = draft.recording.steps[step.forward]
        name = f"{made_by.name}.{step.name}"
        names[name] = names.get(name, 0) + 1
        name += f".{names[name]}" if names[name] > 1 else ""
        number[i] = len(draft.operators)
        draft.leader.append(len(draft.operators))
        modules = draft.operators[partner].modules if partner >= 0 else made_by.modules
        draft.operators.append(
            TracedOperator(name, step.name, modules, step.kernels, True, partner, [name])
        )
        if partner >= 0:
            draft.together([partner, number[i]])
    for i in range(len(steps)):
        if i in number:
            for target, slot, tensor in steps[i].feeds:
                for j, at in _reached(draft, target, slot, number):
                    draft.flows.append(Flow(number[i], number[j], tensor, (j, at)))
    deliverers: dict[int, list[int]] = {}
    for i, storage in _gradients(draft, number):
        deliverers.setdefault(storage, []).append(number.get(i, -1))
    hold_parameters(draft, deliverers)


def _partner(draft: Draft, step: int) -> int:
    if step in draft.of_step:
        return draft.of_step[step]
    return draft.owner(r.storage for r in draft.recording.steps[step].reads)


def _reached(draft: Draft, start: int, slot: int, number: dict[int, int]) -> list[tuple[int, int]]:
    """Backward operators and their inputs that a gradient reaches, handed on as it is."""
    found, waiting = [], [(start, slot)]
    seen = set(waiting)
    while waiting:
        i, at = waiting.pop()
        if i in number:
            found.append((i, at))
            continue
        for target, slot, _ in draft.recording.backward[i].feeds:
            if (target, slot) not in seen:
                seen.add((target, slot))
                waiting.append((target, slot))
    return sorted(found)


def _gradients(draft: Draft, number: dict[int, int]) -> list[tuple[int, int]]:
    """Return which backward operator delivers the gradient of which parameter, and adds it up."""
    pairs: list[tuple[int, int]] = []
    source: dict[int, int] = {}  # the last operator before each step that hands on
    for i, step in enumerate(draft.recording.backward):
        giver = i if i in number else source.get(i, -1)
        for target, _, _ in step.feeds:
            source[target] = giver
        pairs += [(giver, storage) for storage in step.accumulates]
        if giver >= 0:
            draft.operators[number[giver]].kernels += step.sums
    return pairs
