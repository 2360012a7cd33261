"""Python interface, with a module per task: solve, explain, compare, plan a model, run."""

from __future__ import annotations

from ..instances.common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "best_schedule": "BestSchedule",
    "estimate": "Estimate",
    "job": "JobResult solve_job",
    "explanation": "Explanation",
    "plan_model": "PlannedModel",
    "relaxation": "Relaxation relax_schedule",
    "common": "plan_from_split",
    "tensor_degrees": "layers_by_degree",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
