"""Which operator holds each parameter, constant and saved tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .draft import Draft
from .graph import SharedWeight


def hold_parameters(draft: Draft, deliverers: Mapping[int, Sequence[int]]) -> None:
    """Hold each parameter by its first reader, its gradient and optimizer state behind that.

    Parameters
    ----------
    deliverers
        Of the gradient of each parameter, by storage: backward operators, −1 for none.
    """
    for storage, parameter in draft.recording.parameters.items():
        readers = list(dict.fromkeys(draft.readers.get(storage, [])))
        given = deliverers.get(storage, [])
        late = [v for v in given if v >= 0]
        gradient = parameter.size_bytes if given else 0.0
        state = optimizer_bytes(parameter.elements, parameter.size_bytes) if given else 0.0
        for v in readers[:1]:
            draft.operators[v].weight_bytes += parameter.size_bytes
            draft.operators[v].parameters += parameter.elements
        if given:
            behind = [v for v in late if draft.find(v) == draft.find(readers[0])] if readers else []
            holder = draft.operators[(behind or late or [draft.owner([storage])])[0]]
            holder.gradient_bytes += gradient
            holder.optimizer_bytes += state
        if len(readers) > 1:
            draft.shared.append(
                SharedWeight(
                    parameter.name, tuple(readers), tuple(late), parameter.size_bytes, gradient,
                    state,
                )
            )  # fmt: skip


def optimizer_bytes(elements: float, size_bytes: float) -> float:
    """Return the bytes of Adam's state: two 32-bit moments, and a 32-bit copy of shorter weights.

    Rajbhandari et al., "ZeRO", SC 2020, section 3.1.
    """
    return elements * (12.0 if size_bytes < 4 * elements else 8.0)


def hold_memory(draft: Draft) -> None:
    """Hold each constant and saved tensor by one operator."""
    recording, kept = draft.recording, {s for step in draft.recording.steps for s in step.saved}
    inner = {
        s: draft.of_step[i]
        for i, step in enumerate(recording.steps)
        for s in step.saved
        if i in draft.of_step
    }
    for storage, size in enumerate(recording.sizes):
        made = draft.writer.get(storage, -1)
        owner = draft.owner([storage])
        if owner < 0:  # made within a step, for the backward pass only
            owner = inner.get(storage, -1)
        if storage in recording.parameters or owner < 0:
            continue
        holder = draft.operators[owner]
        if storage in kept and storage not in recording.buffers:
            holder.activation_bytes += size
        elif made < 0 and storage not in recording.inputs:
            holder.constant_bytes += size
    if not draft.training:
        _kept_outputs(draft)


def _kept_outputs(draft: Draft) -> None:
    """Count, for inference, the tensors that leave their module or the model."""
    kept = {
        f.tensor.storage
        for f in draft.flows
        if f.target < 0 or draft.operators[f.source].modules != draft.operators[f.target].modules
    }
    for storage in kept:
        draft.operators[draft.writer[storage]].activation_bytes += draft.recording.sizes[storage]
