"""From a recording to a graph of operators: views and constants folded, who shares a device.

What is folded
--------------
A step that computes nothing (a view, a check, dropout in evaluation) belongs to the operator whose
output it looks at. A step that depends on no input and no parameter is a constant: every device
has its own, made once; only its bytes are kept, by the first operator that reads it. A step that
only updates a module's state (a counter) belongs to the next operator of that module. Backward
steps that compute nothing hand their gradients on.

Who shares a device
-------------------
Operators that change one tensor in place together with whoever reads it before the last change,
users of state that changes, a backward operator with its forward operator, and who takes tensors
without a fixed size, as only tensors of one size pass between devices. Operators that read
one parameter are listed, as they may share a device or have copies (`instances/model/ties.py`).
"""

from __future__ import annotations

from ..recording.recording import Recording
from .backward import add_backward
from .draft import Draft
from .forward import add_forward
from .graph import OperatorGraph
from .held_memory import hold_memory


def operator_graph(recording: Recording, training: bool) -> OperatorGraph:
    """Return the operator graph of a recording.

    Notes
    -----
    Linear in what was recorded.
    """
    draft = Draft(recording, training)
    add_forward(draft)
    hold_memory(draft)
    add_backward(draft)
    for i, j in recording.together:
        draft.together({draft.of_step[step] for step in (i, j) if step in draft.of_step})
    return draft.graph()
