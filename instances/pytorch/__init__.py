"""PyTorch models as workloads: traced, recorded, grouped, priced. Needs the extra `runtime`.

`profile.py` is the entry. The modules follow the data: `tracing/trace.py` (module → fx graph; parts
that `torch.export` rejects in `tracing/around.py`), `record.py` (fx graph → recording of every
step, forward and backward), `../operator_graph.py` (steps → operators), `parts.py` (the graph held
against a run of the model itself), `prices.py` (times of operators), `../to_workload.py`.
"""

from __future__ import annotations

from ..common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "flops": "counted_by_torch",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
