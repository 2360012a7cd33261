"""Costs of a training job's stages, from the cost model, once for each setting of a layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ....instances.costs.activations import element_bytes
from ....instances.costs.layers import LayerPrices
from ....instances.costs.layout import JobSchedule, Layout
from ....instances.costs.memory import (
    RankStages,
    block_held,
    ends_held,
    loss_bytes,
    passes_in_flight,
    stage_held,
    stage_kept,
)
from ....instances.costs.stages import StageParts, device_memory, stage_time
from ....instances.job.problem import TrainingJob

#: Quantities of a stage or layer: seconds of passes, numbers of dense and routed parameters, bytes
#: kept per microbatch on the device and in host memory, and seconds of collectives.
F, B, W, SHARED, ROUTED, KEPT, AWAY = range(7)
BUSY = slice(7, 13)


#: Counts of a path: F, B (whole) and W of each stage, shape (stages, 3), and messages.
Path = tuple[Floats, float]


@dataclass(frozen=True, eq=False)
class ProbedStages:
    """Exact costs of stages under a setting, on nodes of one kind; K types of layers."""

    #: Shape (3, 13): quantities of the first, an inner and the last stage without their layers.
    ends: Floats
    #: Shape (K, 13): quantities of a layer of each type, and their changes when it is recomputed.
    layers: Floats
    again: Floats
    #: Shape (K,): bytes inside a layer's backward pass, by type; `reworking`: the least of a
    #: recomputed one.
    each_working: Floats
    #: Shape (K,): bytes of the gradient of a layer's largest matrix.
    matrix: Floats
    reworking: float
    #: Bytes of the loss.
    loss: float
    #: Shape (3,): parameters of embedding and head.
    gathered: Floats

    @property
    def working(self) -> float:
        """Least bytes inside a layer's backward pass."""
        return float(self.each_working.min())


@lru_cache(maxsize=4096)
def stage_flights(schedule: JobSchedule, pipeline: int, chunks: int, microbatches: int) -> Ints:
    """Return the microbatches in flight when ranks hold most, shape (moments, stages)."""
    layout = Layout(pipeline=pipeline, chunks=chunks, schedule=schedule, global_batch=microbatches)
    held = [passes_in_flight(layout, rank) for rank in range(pipeline)]
    found = np.zeros((max(map(len, held)), layout.stages), np.int64)
    for k, row in enumerate(found):
        for moments in held:
            for stage, count in moments[min(k, len(moments) - 1)].items():
                row[stage] = count
    return found


class Probes:
    """Probed stages of a job by setting, and the paths of its schedules that were found."""

    def __init__(self, job: TrainingJob, prices: LayerPrices) -> None:
        self.job, self.prices, self.model = job, prices, prices.model
        self.hooks = any(one.calibration.hooks for one in prices.by_kind(job.settings.software))
        self.order = self.model.types_of_layers[: self.model.layers]
        self.types = sorted(set(self.order))
        self.count = np.array([self.order.count(kind) for kind in self.types], dtype=float)
        self.programs = 0
        self.known: dict[tuple[object, ...], ProbedStages] = {}
        self.paths: dict[tuple[str, int, int, int], list[Path]] = {}

    def stages(self, layout: Layout, prices: LayerPrices) -> ProbedStages:
        """Return the costs of stages at some prices, without waiting for sharded weights."""
        hooked = layout.zero > 0 and layout.pipeline > 1 and self.hooks
        key = (
            prices, layout.tensor, layout.context, layout.expert, layout.expert_tensor,
            layout.microbatch, layout.recompute, layout.recompute_layers is None, hooked,
            layout.offload_activations, layout.offload_weights, layout.offload_optimizer,
        )  # fmt: skip
        if key not in self.known:
            setting = replace(
                layout, pipeline=3, chunks=1, data=1, schedule=JobSchedule.ONE_F_ONE_B,
                zero=int(hooked), global_batch=layout.microbatch,
            )  # fmt: skip
            self.known[key] = self._probe(setting, prices)
        return self.known[key]

    def limits(self, layout: Layout) -> Floats:
        """Return the bytes that each pipeline rank may use, shape (ranks,)."""
        return np.array(device_memory(layout, self.prices.cluster, self.job.memory_bytes))

    def _probe(self, setting: Layout, prices: LayerPrices) -> ProbedStages:
        model, times, types = self.model, prices.times(setting), self.types
        blocks = [block_held(block, model.hidden, setting) for block in model.layer_types]
        divided = RankStages.of(model, replace(setting, stage_layers=(model.layers, 0, 0)))
        counts = self.job.counts_layers(setting)

        def of(stage: int, own: list[int], again: int = 0) -> Floats:
            again = again if counts else len(own)
            layout = replace(setting, recompute_layers=again)
            ends = (stage == 0, stage == 2, bool(model.mtp) and stage == 2)
            held = stage_held(model, layout, stage, own, blocks)
            time = stage_time(layout, prices, times, held, StageParts(tuple(own), again, *ends))
            stages: list[tuple[int, ...]] = [(), (), ()]
            stages[stage] = tuple(own)
            placed = replace(divided, stages=tuple(stages))
            kept, whole = (
                stage_kept(model, replace(layout, offload_activations=part), stage, placed)
                for part in (layout.offload_activations, 0.0)
            )
            return np.array((
                time.forward, time.backward, time.weights, held.shared, held.routed,
                kept, whole - kept, *time.busy,
            ))  # fmt: skip

        one = of(1, types)
        layers = np.array([of(1, [*types, kind]) - one for kind in types])
        leading = [[kind, *(other for other in types if other != kind)] for kind in types]
        again = np.array([of(1, own, 1) - of(1, own) for own in leading]) * counts
        ends = np.array([of(stage, types) for stage in range(3)]) - layers.sum(axis=0)
        sizes = [(divided.plain if counts else divided.sizes)[kind] for kind in types]
        return ProbedStages(
            ends, layers, again,
            np.array([one.working for one in sizes]),
            element_bytes(setting) * np.array([one.matrix for one in sizes]),
            min(divided.sizes[kind].working for kind in types),
            loss_bytes(model, setting),
            np.array([ends_held(model, setting, stage) for stage in range(3)]),
        )  # fmt: skip
