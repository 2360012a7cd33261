"""A model on a cluster with the costs of a training job: seconds and bytes of layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..instances.common.arrays import Floats
from ..instances.costs import calibration as calibrations
from ..instances.costs.calibration import Calibration, load_measurements, with_measurements
from ..instances.costs.clusters import training_cluster
from ..instances.costs.description import ModelDescription
from ..instances.costs.hardware import TrainingCluster
from ..instances.costs.layers import LayerPrices
from ..instances.costs.layout import Layout
from ..instances.costs.memory import peak_memory
from ..instances.costs.models import model_description
from ..instances.job.problem import TrainingJob, on_one_device
from ..instances.job.usual_layouts import UsualLayout, usual_layouts
from ..runtime.estimate import iteration_times


@dataclass(frozen=True)
class JobCosts:
    """A model on a cluster with the costs of a job."""

    model: ModelDescription  # model, cluster, job: what trains on what, and what is asked
    cluster: TrainingCluster
    job: TrainingJob
    prices: LayerPrices  # seconds of layers

    @property
    def memory_limit(self) -> float:
        """Bytes of the smallest device that the job may use."""
        least = min(nodes.accelerator.memory_bytes for nodes in self.cluster.nodes)
        return least if self.job.memory_bytes is None else min(least, self.job.memory_bytes)

    def judge(self, layouts: Sequence[Layout]) -> Floats:
        """Return the seconds of plans, infinite where one does not fit."""
        limit = self.memory_limit
        fits = [peak_memory(self.model, one).needed <= limit for one in layouts]
        chosen = [one for one, there in zip(layouts, fits, strict=True) if there]
        seconds = np.full(len(layouts), np.inf)
        seconds[fits] = [time.seconds for time in iteration_times(chosen, self.prices)]
        return seconds

    def usual(self) -> tuple[UsualLayout, ...]:
        """Return what is usually done with such a job."""
        limit = self.memory_limit
        return usual_layouts(self.model, self.cluster, self.job.template, limit)

    def starts(self, usual: Sequence[UsualLayout]) -> list[Layout]:
        """Return the usual layouts that are plans of the job."""
        layouts = [one.layout for one in usual if one.layout is not None]
        # The last stage predicts further tokens, by whichever number it is called.
        layouts = [
            replace(one, mtp_stage=-1) if one.mtp_stage == one.stages - 1 else one
            for one in layouts
        ]
        own = [one for one in layouts if on_one_device(one) == self.job.template]
        return [one for one in own if self.job.allows(one)]


def job_costs(
    model: str | Path | ModelDescription,
    cluster: str | Path | TrainingCluster,
    job: TrainingJob,
    *,
    calibration: Calibration | None = None,
    measured: str | Path | None = None,
) -> JobCosts:
    """Return the costs of a job; parameters as of `solve_job`."""
    if not isinstance(model, ModelDescription):
        model = model_description(model)
    if not isinstance(cluster, TrainingCluster):
        cluster = training_cluster(cluster)
    table = calibration
    if table is None:
        table = calibrations.calibration(cluster.accelerator.family, job.settings.software)
    if measured is not None:
        table = with_measurements(table, load_measurements(Path(measured)), cluster)
    return JobCosts(model, cluster, job, LayerPrices(model, cluster, table))
