"""Estimates of a training job's iteration from shapes and devices: seconds and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..instances.common.units import show_bytes, show_percent
from ..instances.costs import calibration as calibrations
from ..instances.costs.activations import fused
from ..instances.costs.calibration import Calibration, load_measurements, with_measurements
from ..instances.costs.clusters import training_cluster
from ..instances.costs.description import ModelDescription, forward_flops
from ..instances.costs.hardware import TrainingCluster
from ..instances.costs.layers import LayerPrices
from ..instances.costs.layout import Layout, Software, check_layout, describe
from ..instances.costs.memory import NEARLY_FULL, PEAK_ERROR, RankMemory, RankStages, rank_memory
from ..instances.costs.models import model_description
from ..instances.costs.stages import device_memory
from ..instances.costs.traffic import CollectiveTraffic, collectives
from ..instances.model.summary import Summarised
from ..runtime.estimate import iteration_times

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Estimate(Summarised):
    """Estimate of one iteration: seconds by term, bytes by term and pipeline rank.

    Parameters
    ----------
    model, layout, cluster
        What was priced.
    seconds
        Of an iteration: from the first microbatch to the last weight's update.
    terms
        Seconds by term, of the pipeline rank that has the most to do; they add up to `seconds`.
    memory
        Of a device of each pipeline rank, at the moment when it holds most.
    calibration
        Name of the table of efficiencies.

    Examples
    --------
    >>> import stagecut
    >>> layout = stagecut.Layout(tensor=4, pipeline=4, data=4, global_batch=512, sequence=8192)
    >>> found = stagecut.estimate("llama3-70b", layout, "h100:8x8")
    >>> 0.2 < found.mfu < 0.7, len(found.memory)
    (True, 4)
    """

    model: ModelDescription
    layout: Layout
    cluster: TrainingCluster
    seconds: float
    terms: Mapping[str, float]
    memory: tuple[RankMemory, ...]
    calibration: str

    def summary(self) -> dict[str, object]:
        """Return model, devices, layout, seconds, rate and memory for display."""
        return {
            "model": self.model.name,
            "devices": self.cluster.kinds,
            "layout": describe(self.layout),
            "seconds": self.seconds,
            "tokens_per_s": self.tokens_per_s,
            "mfu": show_percent(self.mfu),
            "memory": show_bytes(self.memory[self.fullest].needed),
            "fits": self.fits,
        }

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second and device."""
        tokens = self.layout.global_batch * self.layout.sequence
        return tokens / self.seconds / self.layout.devices

    @property
    def flops_per_s(self) -> float:
        """Model FLOP/s per device, counted as in `forward_flops`.

        Three times those of a forward pass: recomputation does not count, and attention counts
        whole, whatever its mask hides.
        """
        once = forward_flops(self.model, self.layout.sequence)
        return 3 * once * self.layout.global_batch / self.seconds / self.layout.devices

    @property
    def mfu(self) -> float:
        """`flops_per_s` over the devices' peak in the precision that products are computed in.

        On unequal nodes that is the mean of all devices.
        """
        compute, nodes = self.layout.recipe.compute, self.cluster.nodes
        peak = sum(one.devices * one.accelerator.peak[compute] for one in nodes)
        return self.flops_per_s * self.cluster.devices / peak

    @property
    def memory_limits(self) -> tuple[float, ...]:
        """Bytes of each pipeline rank's smallest device."""
        return device_memory(self.layout, self.cluster)

    @property
    def fullest(self) -> int:
        """Pipeline rank that has least left of its smallest device's memory."""
        limits = self.memory_limits
        return min(range(len(limits)), key=lambda rank: limits[rank] - self.memory[rank].needed)

    @property
    def memory_limit(self) -> float:
        """Bytes of the fullest rank's smallest device."""
        return self.memory_limits[self.fullest]

    @property
    def fits(self) -> bool:
        """Whether every rank's bytes fit its devices."""
        return self.memory[self.fullest].needed <= self.memory_limit

    @property
    def safe_memory(self) -> float:
        """Bytes of the fullest rank's device that a run can rely on.

        Above them PyTorch's allocator may slow it down; with fused layers, peaks may be too low.
        """
        share = 1 - PEAK_ERROR if fused(self.layout) else NEARLY_FULL
        return share * self.memory_limit

    @property
    def nearly_full(self) -> bool:
        """Whether it fits, but needs more than `safe_memory`."""
        return self.fits and self.memory[self.fullest].needed > self.safe_memory

    def collectives(self, rank: int = 0) -> tuple[CollectiveTraffic, ...]:
        """Return count and bytes of an iteration's collectives, by axis and kind.

        Parameters
        ----------
        rank
            Pipeline rank.

        Examples
        --------
        >>> import stagecut
        >>> layout = stagecut.Layout(data=8, global_batch=8, sequence=4096, zero=1)
        >>> found = stagecut.estimate("llama3.2-1b", layout, "h100:8")
        >>> [(one.axis, one.kind, one.count) for one in found.collectives()]
        [('data', 'reduce-scatter', 1), ('data', 'all-gather', 1)]
        """
        return collectives(self.model, self.layout, rank)

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers as JSON takes them, in seconds, bytes and operations."""
        return {
            "model": self.model.name,
            "parameters": self.model.parameters,
            "devices": self.layout.devices,
            "accelerator": self.cluster.accelerator.name,
            "calibration": self.calibration,
            "seconds": self.seconds,
            "tokens_per_s_per_gpu": self.tokens_per_s,
            "tflops_per_gpu": self.flops_per_s / 1e12,
            "mfu": self.mfu,
            "terms": dict(self.terms),
            "memory_limit_bytes": self.memory_limit,
            "fits": self.fits,
            "nearly_full": self.nearly_full,
            "memory": [
                {
                    "pipeline_rank": k,
                    "limit_bytes": limit,
                    "held": rank.held,
                    "allocated": rank.allocated,
                }
                | vars(rank)
                for k, (rank, limit) in enumerate(zip(self.memory, self.memory_limits, strict=True))
            ],
            "collectives": [vars(one) for one in self.collectives()],
        }

    def plot(self) -> Figure:
        """Return both as a picture: seconds by term, and bytes by term and pipeline rank."""
        from ..runtime.pictures.charts import plot_estimate

        return plot_estimate(
            self.terms,
            [vars(rank) for rank in self.memory],
            self.memory_limits,
            f"{self.model.name} on {self.cluster.kinds}",
        )


def estimate(
    model: str | Path | ModelDescription,
    layout: Layout,
    cluster: str | Path | TrainingCluster,
    *,
    calibration: Calibration | None = None,
    measured: str | Path | None = None,
) -> Estimate:
    """Price one training iteration of a model under a layout.

    Parameters
    ----------
    model
        A shipped description's name such as ``llama3-70b``, a Hugging Face ``config.json`` or its
        folder, or a description.
    layout
        How the iteration is divided.
    cluster
        Such as ``h100:8x8``, a cluster file, or a cluster; see `training_cluster`.
    calibration
        What kernels and links reach; default: the shipped table for the devices and the layout's
        software.
    measured
        A file of what ``stagecut measure --products --json`` prints: your own links and matrix
        products take the place of that table's.

    Returns
    -------
    Estimate
        Nothing is run.

    Raises
    ------
    InputError
        If model or cluster is not known, or the layout contradicts itself or one of them.

    Notes
    -----
    On unequal nodes each layer and the optimizer's step are priced on the slowest kind that its
    ranks lie on, numbered in the cluster's order; links have the first kind's efficiencies, and of
    replicas' traffic that kind's share is hidden. How far such estimates are from measured runs is
    in ``docs/validation.md``.

    Examples
    --------
    >>> import stagecut
    >>> layout = stagecut.Layout(data=8, global_batch=64, sequence=4096, zero=1)
    >>> stagecut.estimate("llama3.2-1b", layout, "a100:8").fits
    True
    """
    prices = layer_prices(model, cluster, layout.software, calibration, measured)
    model, cluster = prices.model, prices.cluster
    check_layout(model, layout, cluster)
    (time,) = iteration_times([layout], prices)
    stages = RankStages.of(model, layout)
    ranks = tuple(rank_memory(model, layout, rank, stages) for rank in range(layout.pipeline))
    name = prices.calibration.name
    return Estimate(model, layout, cluster, time.seconds, time.terms, ranks, name)


def layer_prices(
    model: str | Path | ModelDescription,
    cluster: str | Path | TrainingCluster,
    software: Software,
    calibration: Calibration | None = None,
    measured: str | Path | None = None,
) -> LayerPrices:
    """Return the prices of a model's layers on a cluster; the other parameters as of `estimate`."""
    if not isinstance(model, ModelDescription):
        model = model_description(model)
    if not isinstance(cluster, TrainingCluster):
        cluster = training_cluster(cluster)
    table = calibration or calibrations.calibration(cluster.accelerator.family, software)
    if measured is not None:
        table = with_measurements(table, load_measurements(Path(measured)), cluster)
    return LayerPrices(model, cluster, table)
