"""Whether a plan for a workload could be run, said before it is planned."""

from __future__ import annotations

from ...instances import InputError, Workload
from ...instances.common.units import ON_NUMBERS


def check_runnable(workload: Workload) -> None:
    """Check that `stagecut run` can trace again what a workload was made of.

    Raises
    ------
    InputError
        With what is in the way, and what can be done.
    """
    made = workload.provenance
    if made.get("generator") != "stagecut.instances.pytorch":
        raise InputError(f"--runnable: {workload.name} is of no PyTorch model; profile one")
    if made.get("traced_by") == ON_NUMBERS:
        raise InputError(
            f"--runnable: {workload.name}: {made.get('torch_export_failed', '')}, and that code "
            "would be cut; move it into a module of its own, which then runs as it is, and profile "
            "again"
        )
