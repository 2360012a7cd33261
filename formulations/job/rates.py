"""Seconds and bytes of one layer, by layer type and setting, as arrays; and of what is beside them.

For a setting (degrees, microbatch, recomputed modules) and a layer type τ, per microbatch:

    f, g, w   seconds of the forward pass, of the backward pass (w included), of weights' gradients
    f', g'    what f and g grow by where the whole layer is recomputed; 0 with modules, counted in g
    A, A'     bytes kept from the forward to the backward pass, and what recomputation saves of them
    D, D'     bytes that go to host memory and come back, and what recomputation saves of them
    X         bytes inside the backward pass
    h, q      parameters on a rank that all replicas hold, and of routed experts

Embedding, head and the prediction of further tokens have their own seconds and bytes, on the first
and the last stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...instances.common.arrays import Floats
from ...instances.costs.activations import Tokens, element_bytes, fused
from ...instances.costs.layers import LayerPrices, LayerTime, rank_parameters
from ...instances.costs.layout import Layout, Software
from ...instances.costs.memory import RankStages, ends_held, loss_bytes, stage_kept
from .space import JobSpace


@dataclass(frozen=True, eq=False)
class Rates:
    """What a layer takes, for S settings and K layer types."""

    #: Shape (K,): layers of each type, those that predict further tokens apart.
    count: Floats
    #: Shape (S, K, 3): f, g, w.
    passes: Floats
    #: Shape (S, K, 2): f', g'.
    again: Floats
    #: Shape (S, 2, 3): the same as `passes` of what the first and the last stage have besides.
    ends: Floats
    #: Shape (S, K, 6), (S, K, 6), (S, 2, 6): seconds of collectives in these passes, as those of a
    #: layer.
    busy: Floats
    busy_again: Floats
    ends_busy: Floats
    #: Shape (S, K): A, A', D, D', X without recomputation of the whole layer.
    kept: Floats
    saved: Floats
    away: Floats
    away_saved: Floats
    working: Floats
    #: Shape (S, K): bytes of the gradient of its largest matrix.
    matrix: Floats
    #: Shape (S, 2): bytes kept per microbatch besides, in the first and the last stage.
    ends_kept: Floats
    #: Shape (S,): bytes of the loss.
    loss: Floats
    #: Shape (S, K, 2): h and q, in memory, and as traffic and optimizer count them.
    held: Floats
    weights: Floats
    #: Shape (S, 2, 2): of the first and the last stage besides.
    ends_held: Floats
    ends_weights: Floats
    #: Shape (S, 2): parameters of embedding and head alone.
    ends_gathered: Floats
    #: Shape (S,): bytes always there for messages, in a pipeline.
    messages: Floats
    #: On each kind of nodes, where there are several; seconds above are then the least of them.
    kinds: tuple[Rates, ...] = ()

    def on_rank(self, setting: int, kinds: list[int]) -> Rates:
        """Return what a pipeline rank takes that lies on some kinds of nodes, no more than it is.

        That is the slowest of them, if one is for every layer and end; else the least of each pass.
        """
        if not self.kinds:
            return self
        both = np.array([self.kinds[kind]._both(setting) for kind in kinds])
        slowest = int(both.sum(axis=1).argmax())
        return self.kinds[kinds[slowest]] if _no_more(both, both[slowest]) else self

    def slowest(self, kinds: list[int], waits: Sequence[bool]) -> Rates:
        """What the slowest of some kinds of nodes takes, by setting: no more than a rank on all.

        Of settings whose passes wait for host memory, where another kind may be the slowest, it is
        the least of each pass.
        """
        if not self.kinds:
            return self
        both = np.array(
            [[self.kinds[k]._both(i).sum() for k in kinds] for i in range(len(self.passes))]
        )
        own = [
            self if one and len(kinds) > 1 else self.kinds[kinds[k]]
            for k, one in zip(both.argmax(axis=1), waits, strict=True)
        ]
        return replace(
            self,
            passes=np.array([one.passes[i] for i, one in enumerate(own)]),
            again=np.array([one.again[i] for i, one in enumerate(own)]),
            ends=np.array([one.ends[i] for i, one in enumerate(own)]),
            kinds=(),
        )

    def _both(self, i: int) -> Floats:
        """Seconds of both passes of each layer type, of its recomputation and of the ends."""
        parts = (self.passes[i, :, :2], self.again[i], self.ends[i, :, :2])
        return np.concatenate([part.sum(axis=1) for part in parts])


def _no_more(seconds: Floats, most: Floats) -> bool:
    """Whether some seconds are not above others by more than rounding."""
    return bool((seconds <= most * (1 + 1e-9) + 1e-15).all())


class NotPriced(Exception):
    """Time is up before all settings have been priced."""


def rates(
    space: JobSpace, prices: LayerPrices, stopped: Callable[[], bool] = lambda: False
) -> Rates:
    """Return what layers take under every setting, from the same costs as any estimate.

    Raises
    ------
    NotPriced
        If `stopped` is true before the last setting.
    """
    software = space.job.settings.software
    every = [_on_one_kind(space, one, stopped) for one in prices.by_kind(software)]
    return every[0] if len(every) == 1 else _least(every)


def _least(kinds: list[Rates]) -> Rates:
    """Return the least seconds of several kinds of nodes, each pass for itself."""

    def least(passes: list[Floats]) -> Floats:
        found = np.array(passes)
        found[..., 1] -= found[..., 2]  # what a split backward pass takes before its W
        whole: Floats = found.min(axis=0)
        whole[..., 1] += whole[..., 2]
        return whole

    return replace(
        kinds[0],
        passes=least([one.passes for one in kinds]),
        again=np.min([one.again for one in kinds], axis=0),
        ends=least([one.ends for one in kinds]),
        busy=np.min([one.busy for one in kinds], axis=0),
        busy_again=np.min([one.busy_again for one in kinds], axis=0),
        ends_busy=np.min([one.ends_busy for one in kinds], axis=0),
        kinds=tuple(kinds),
    )


def _on_one_kind(space: JobSpace, prices: LayerPrices, stopped: Callable[[], bool]) -> Rates:
    """Return what layers take on nodes of the first kind."""
    model, settings = prices.model, space.settings
    kinds = len(model.layer_types)
    main = Counter(model.types_of_layers[: model.layers])
    further = [model.layer_types.index(block) for block in model.mtp]
    s = len(settings)
    out = Rates(
        np.array([main[k] for k in range(kinds)], dtype=float),
        np.zeros((s, kinds, 3)), np.zeros((s, kinds, 2)), np.zeros((s, 2, 3)),
        np.zeros((s, kinds, 6)), np.zeros((s, kinds, 6)), np.zeros((s, 2, 6)),
        np.zeros((s, kinds)), np.zeros((s, kinds)), np.zeros((s, kinds)), np.zeros((s, kinds)),
        np.zeros((s, kinds)), np.zeros((s, kinds)), np.zeros((s, 2)), np.zeros(s),
        np.zeros((s, kinds, 2)), np.zeros((s, kinds, 2)),
        np.zeros((s, 2, 2)), np.zeros((s, 2, 2)), np.zeros((s, 2)), np.zeros(s),
    )  # fmt: skip
    for i, setting in enumerate(settings):
        if stopped():
            raise NotPriced
        by_layer = space.job.counts_layers(setting)
        _time(out, i, setting, prices, further, by_layer)
        _memory(out, i, setting, prices, further, by_layer)
    return out


def _seconds(time: LayerTime) -> tuple[float, float, float]:
    return time.forward, time.backward, time.weights


def _time(
    out: Rates, i: int, setting: Layout, prices: LayerPrices, further: list[int], by_layer: bool
) -> None:
    """Set seconds and traffic of setting i."""
    times, model = prices.times(setting), prices.model
    for k, (plain, again) in enumerate(zip(times.blocks, times.recomputed, strict=True)):
        out.passes[i, k] = _seconds(plain if by_layer else again)
        out.busy[i, k] = (plain if by_layer else again).busy
        if by_layer:
            out.again[i, k] = again.forward - plain.forward, again.backward - plain.backward
            out.busy_again[i, k] = np.subtract(again.busy, plain.busy)
        out.weights[i, k] = rank_parameters(model.layer_types[k], model.hidden, setting)
    out.ends[i, 0] = _seconds(times.embedding)
    out.ends[i, 1] = _seconds(times.head)
    out.ends_busy[i] = times.embedding.busy, times.head.busy
    for k in further:
        out.ends[i, 1] += _seconds(times.recomputed[k])
        out.ends[i, 1] += _seconds(times.further)
        out.ends_busy[i, 1] += np.add(times.recomputed[k].busy, times.further.busy)
        out.ends_weights[i, 1] += out.weights[i, k]
        out.ends_weights[i, 1, 0] += 2 * model.hidden**2 / setting.tensor
    out.ends_weights[i, 0, 0] += model.embedding_parameters / setting.tensor
    out.ends_weights[i, 1, 0] += model.head_parameters / setting.tensor


def _memory(
    out: Rates, i: int, setting: Layout, prices: LayerPrices, further: list[int], by_layer: bool
) -> None:
    """Set bytes of setting i, by asking for a pipeline whose ends have no layers."""
    model = prices.model
    ends = replace(setting, pipeline=2, stage_layers=(0, model.layers), recompute_layers=0)
    divided = RankStages.of(model, ends)
    part = setting.offload_activations
    for k, (again, plain) in enumerate(zip(divided.sizes, divided.plain, strict=True)):
        whole = plain.kept if by_layer else again.kept
        saved = plain.kept - again.kept if by_layer else 0.0
        out.kept[i, k], out.away[i, k] = (1 - part) * whole, part * whole
        out.saved[i, k], out.away_saved[i, k] = (1 - part) * saved, part * saved
        out.working[i, k] = plain.working if by_layer else again.working
        out.matrix[i, k] = element_bytes(setting) * plain.matrix
        out.held[i, k] = again.held.shared, again.held.routed
    empty = replace(divided, stages=((), ()))
    out.ends_kept[i] = [stage_kept(model, ends, stage, empty) for stage in (0, 1)]
    out.ends_gathered[i] = [ends_held(model, ends, stage) for stage in (0, 1)]
    out.ends_held[i, :, 0] = out.ends_gathered[i]
    for k in further:
        out.ends_held[i, 1] += out.held[i, k]
        out.ends_held[i, 1, 0] += (2 * model.hidden / setting.tensor + 3) * model.hidden
        out.ends_held[i, 1, 0] += model.vocabulary / setting.tensor * model.hidden
    out.loss[i] = loss_bytes(model, setting)
    at = Tokens.of(setting)
    out.messages[i] = 2 * element_bytes(setting) * at.outer * model.hidden


def kept_output(setting: Layout, hidden: int) -> float:
    """Bytes of a stage's output that pipelines of PyTorch and DeepSpeed keep per microbatch."""
    deepspeed = setting.software is Software.MEGATRON_DEEPSPEED
    if deepspeed or not fused(setting):
        return element_bytes(setting) * Tokens.of(setting).outer * hidden
    return 0.0
