"""Any PyTorch model as a workload: traced, recorded, grouped, priced. Needs the extra `runtime`.

`profile.py` is the front door; `matching.py` finds the granularity that a plan was made at, to run
it. Both take a model apart and put its profile together by `parts.py`. The modules follow the data:
`tracing/trace.py` (module → fx graph; what `torch.export` rejects in `tracing/fallback.py`),
`recording/record.py` and `recording/engine.py` (fx graph → what every step does, forward and
backward), `operators/operators.py` (steps → operator graph), `ancestry.py` (the graph held against
a run of the model itself), `layers.py` (operators → layers),
`prices/prices.py` (their times, by `prices/estimate.py`, or by `prices/timing.py` and
`prices/correct.py`), `to_workload.py`.
"""

from __future__ import annotations

from ..common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "counts": "counted_by_torch",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
