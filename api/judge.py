"""Judge of a search: the verifier as a value that can be sent to other processes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..instances import Cluster, Problem, Solution, Workload
from ..runtime import evaluate


@dataclass(frozen=True, eq=False)
class Judge:
    """Returns objectives of solutions by definition.

    Parameters
    ----------
    workload, cluster, problem
        What the solutions are for.
    """

    workload: Workload
    cluster: Cluster
    problem: Problem

    def __call__(self, solution: Solution) -> float:
        """Return the objective of a solution, `inf` if it breaks a rule."""
        report = evaluate(self.workload, self.cluster, self.problem, solution)
        return math.inf if report.violations else report.objective

    def tie(self, solution: Solution) -> float:
        """Return the tie-breaking key between solutions of one objective."""
        return evaluate(self.workload, self.cluster, self.problem, solution).tie
