"""From recorded steps to forward operators: what computes nothing is folded into what does."""

from __future__ import annotations

from .draft import Draft
from .graph import Flow, TracedOperator


def add_forward(draft: Draft) -> None:
    """Turn steps into operators, and readings into flows from the last writer."""
    waiting: list[int] = []  # steps that only touch state, until an operator of their module
    for i, step in enumerate(draft.recording.steps):
        touched = {r.storage for r in step.reads} | set(step.writes)
        if not step.kernels:
            if touched and touched <= draft.constant:
                draft.constant |= set(step.writes)
            continue
        fixed = {r.storage for r in step.reads} <= draft.constant
        if fixed and not step.random:
            draft.constant |= set(step.writes)
            draft.anywhere.append(step.name)
            continue
        if touched <= draft.state | draft.constant:
            waiting.append(i)
            continue
        v = _operator(draft, i)
        for other in [w for w in waiting if draft.recording.steps[w].modules == step.modules]:
            waiting.remove(other)
            _join(draft, other, v)
    for i in waiting:
        _operator(draft, i)
    _views(draft)
    for tensor in draft.recording.outputs:
        if tensor.storage in draft.writer:
            draft.flows.append(Flow(draft.writer[tensor.storage], -1, tensor))


def _operator(draft: Draft, i: int) -> int:
    step = draft.recording.steps[i]
    v = len(draft.operators)
    draft.operators.append(
        TracedOperator(step.name, step.kind, step.modules, step.kernels, parts=[step.name])
    )
    draft.leader.append(v)
    _connect(draft, i, v)
    return v


def _join(draft: Draft, i: int, v: int) -> None:
    """Let operator `v` do what step `i` does, too."""
    step, op = draft.recording.steps[i], draft.operators[v]
    op.kernels = (*step.kernels, *op.kernels)
    op.parts.insert(0, step.name)
    _connect(draft, i, v)


def _connect(draft: Draft, i: int, v: int) -> None:
    step = draft.recording.steps[i]
    draft.of_step[i] = v
    read = {r.storage for r in step.reads}
    for tensor in step.reads:
        source = draft.writer.get(tensor.storage)
        if source is not None and source != v:
            draft.flows.append(Flow(source, v, tensor))
    for storage in read:
        draft.readers.setdefault(storage, []).append(v)
    for storage in step.writes:
        if storage in read:  # changed in place: with all who have seen it so far
            before = [draft.writer[storage]] if storage in draft.writer else []
            draft.together([v, *before, *draft.readers[storage]])
        draft.writer[storage] = v
        draft.constant.discard(storage)
    for storage in read & draft.state:
        draft.together(draft.readers[storage])


def _views(draft: Draft) -> None:
    """Credit steps that compute nothing to the operator whose output they look at."""
    for i, step in enumerate(draft.recording.steps):
        if step.kernels or i in draft.of_step:
            continue
        v = draft.owner(r.storage for r in step.reads)
        if v >= 0:
            draft.of_step[i] = v
            draft.operators[v].parts.append(step.name)
        else:
            draft.anywhere.append(step.name)
