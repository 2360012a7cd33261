"""Costs of training: seconds and bytes of a model's layers on given devices under a layout.

`description.py` describes the model, `hardware.py` the devices, `layout.py` the division of an
iteration over them. `layers.py` derives the operations, bytes and collectives of each layer type
(routed experts: `experts.py`); `calibration.py` and `collectives.py` convert them to seconds, and
`stages.py` adds these up by stage. `activations.py` counts the activations that a layer type keeps,
`memory.py` adds up the memory of a rank, `traffic.py` counts the collectives of an iteration.
"""

from __future__ import annotations

from ..common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "description": "ModelDescription",
    "hardware": "TrainingCluster",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
