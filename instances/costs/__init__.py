"""Costs of training: seconds and bytes of a model's layers on given devices under a layout.

`description.py` is what a model is made of, `hardware.py` what it runs on, `layout.py` how it is
divided. From these `layers.py` counts operations, bytes and collectives of each layer type;
`calibration.py` and `collectives.py` turn them into seconds, `stages.py` adds those up by stage;
`experts.py` has what routed experts compute and send. `activations.py` counts what a layer type
keeps, `memory.py` adds up what a rank holds, `traffic.py` counts the collectives of an iteration.
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
