"""Which operator holds each parameter, constant and saved tensor."""

from __future__ import annotations

from .draft import Draft


def hold_memory(draft: Draft) -> None:
    """Hold each parameter, constant and saved tensor by one operator."""
    recording, kept = draft.recording, {s for step in draft.recording.steps for s in step.saved}
    inner = {
        s: draft.of_step[i]
        for i, step in enumerate(recording.steps)
        for s in step.saved
        if i in draft.of_step
    }
    for storage, parameter in recording.parameters.items():
        users = list(dict.fromkeys(draft.readers.get(storage, [])))
        for v in users if draft.copies else users[:1]:
            draft.operators[v].weight_bytes += parameter.size_bytes
        for v in users[:1]:
            draft.operators[v].parameters += parameter.elements
        if not draft.copies:
            draft.together(users)
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
