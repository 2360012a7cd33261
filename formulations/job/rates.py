"""Seconds and bytes of layers under every setting, as arrays by setting and layer type.

For a setting (degrees, microbatch, recomputed modules) and a layer type τ, per microbatch:

    f, g, w   seconds of the forward pass, of the backward pass (w included), of weights' gradients
    g'        increase of g if the whole layer is recomputed; 0 for modules, which g includes
    A, A'     bytes kept from the forward to the backward pass, and their reduction by recomputation
    D, D'     bytes that go to host memory and back, and their reduction by recomputation
    X         bytes in use inside the backward pass
    h, q      parameters on a rank: shared ones, and those of routed experts

Embedding, head and multi-token prediction (the *ends*) add seconds and bytes to the first and the
last stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from ...instances.common.arrays import Floats, Ints
from ...instances.costs.activations import Tokens, element_bytes
from ...instances.costs.description import ModelDescription
from ...instances.costs.layers import LayerPrices, LayerTime
from ...instances.costs.memory import RankStages, ends_held, loss_bytes, stage_held, stage_kept
from .space import JobSpace


@dataclass(frozen=True, eq=False)
class Rates:
    """Seconds and bytes of layers, for S settings and K layer types."""

    #: Shape (K,): number of layers of each type, without multi-token prediction.
    count: Floats
    #: Shape (S, K, 3): seconds f, g, w.
    passes: Floats
    #: Shape (S, K): seconds g'.
    again: Floats
    #: Shape (S, 2, 3): as `passes`, for the ends of the first and of the last stage.
    ends: Floats
    #: Shape (S, K, 6), (S, K, 6), (S, 2, 6): seconds of collectives in these passes, as in
    #: `LayerTime.busy`.
    busy: Floats
    busy_again: Floats
    ends_busy: Floats
    #: Shape (S, K): bytes A, A', D, D', X without recomputation of the whole layer.
    kept: Floats
    saved: Floats
    away: Floats
    away_saved: Floats
    working: Floats
    #: Shape (S, K): bytes of the gradient of its largest matrix.
    matrix: Floats
    #: Shape (S, 2): bytes kept per microbatch for the ends of the first and of the last stage.
    ends_kept: Floats
    #: Shape (S,): bytes of the loss.
    loss: Floats
    #: Shape (S, K, 2): parameters h and q.
    held: Floats
    #: Shape (S, 2, 2): as `held`, for the ends of the first and of the last stage in a pipeline.
    ends_held: Floats
    #: Shape (S, 2): parameters of embedding and head alone.
    ends_gathered: Floats
    #: Shape (S, 2): parameters of the copies of the embedding that only pipelines have: for a tied
    #: head, and for multi-token prediction.
    copies: Floats
    #: Shape (S,): bytes of message buffers in a pipeline.
    messages: Floats
    #: Rates by the kinds of nodes on which a rank lies; empty if all nodes are of one kind.
    by_kinds: Mapping[tuple[int, ...], Rates] = field(default_factory=dict)

    def ends_of(self, settings: Ints | int, stages: int) -> Floats:
        """Return h and q for the ends of the first and last of `stages` stages, (..., 2, 2)."""
        held = self.ends_held[settings].copy()
        if stages == 1:
            held[..., 1, 0] -= self.copies[settings].sum(axis=-1)
        return held

    def on(self, kinds: tuple[int, ...]) -> Rates:
        """Return the rates of pipeline ranks that lie on these kinds of nodes."""
        return self.by_kinds[kinds] if self.by_kinds else self


#: Columns that differ between kinds of nodes.
_TIMED = ("passes", "again", "ends", "busy", "busy_again", "ends_busy")


class NotPriced(Exception):
    """Raised if time is up before all settings have been priced."""


def rates(
    space: JobSpace, prices: LayerPrices, stopped: Callable[[], bool] = lambda: False
) -> Rates:
    """Return seconds and bytes of layers under every setting, from the costs of `estimate`.

    Raises
    ------
    NotPriced
        If `stopped` returns true before the last setting is priced.
    """
    found = _on_first(space, prices, stopped)
    count = len(prices.cluster.nodes)
    if count == 1:
        return found
    by_kinds = {}
    for first, end in combinations(range(count + 1), 2):
        kinds = tuple(range(first, end))
        own = replace(found, **{name: np.zeros_like(getattr(found, name)) for name in _TIMED})
        _time(own, space, prices.on(kinds, space.job.settings.software), stopped)
        by_kinds[kinds] = own
    return replace(found, by_kinds=by_kinds)


def _on_first(space: JobSpace, prices: LayerPrices, stopped: Callable[[], bool]) -> Rates:
    """Return the rates of layers on nodes of the first kind."""
    model = prices.model
    kinds, s = len(model.layer_types), len(space.settings)
    main = Counter(model.types_of_layers[: model.layers])
    out = Rates(
        np.array([main[k] for k in range(kinds)], dtype=float),
        np.zeros((s, kinds, 3)), np.zeros((s, kinds)), np.zeros((s, 2, 3)),
        np.zeros((s, kinds, 6)), np.zeros((s, kinds, 6)), np.zeros((s, 2, 6)),
        np.zeros((s, kinds)), np.zeros((s, kinds)), np.zeros((s, kinds)), np.zeros((s, kinds)),
        np.zeros((s, kinds)), np.zeros((s, kinds)), np.zeros((s, 2)), np.zeros(s),
        np.zeros((s, kinds, 2)), np.zeros((s, 2, 2)), np.zeros((s, 2)), np.zeros((s, 2)),
        np.zeros(s),
    )  # fmt: skip
    _time(out, space, prices, stopped)
    for i in range(s):
        if stopped():
            raise NotPriced
        _memory(out, i, space, model)
    return out


def _seconds(time: LayerTime) -> tuple[float, float, float]:
    return time.forward, time.backward, time.weights


def _time(out: Rates, space: JobSpace, prices: LayerPrices, stopped: Callable[[], bool]) -> None:
    """Set the seconds of passes and of their collectives, for every setting."""
    mtp = prices.model.types_of_layers[prices.model.layers :]
    for i, setting in enumerate(space.settings):
        if stopped():
            raise NotPriced
        times, by_layer = prices.times(setting), space.job.counts_layers(setting)
        for k, (plain, again) in enumerate(zip(times.blocks, times.recomputed, strict=True)):
            out.passes[i, k] = _seconds(plain if by_layer else again)
            out.busy[i, k] = (plain if by_layer else again).busy
            if by_layer:
                out.again[i, k] = again.backward - plain.backward
                out.busy_again[i, k] = np.subtract(again.busy, plain.busy)
        out.ends[i] = _seconds(times.embedding), _seconds(times.head)
        out.ends_busy[i] = times.embedding.busy, times.head.busy
        for k in mtp:
            out.ends[i, 1] += np.add(_seconds(times.recomputed[k]), _seconds(times.mtp))
            out.ends_busy[i, 1] += np.add(times.recomputed[k].busy, times.mtp.busy)


def _memory(out: Rates, i: int, space: JobSpace, model: ModelDescription) -> None:
    """Set parameters and bytes of setting i; the ends are those of stages without layers."""
    setting = space.settings[i]
    by_layer = space.job.counts_layers(setting)
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
    blocks = [size.held for size in divided.sizes]
    held = (stage_held(model, ends, stage, (), blocks) for stage in (0, 1))
    out.ends_held[i] = [(one.shared, one.routed) for one in held]
    table = model.vocabulary * model.hidden / setting.tensor
    out.copies[i] = table * (model.tied and model.head), table * bool(model.mtp)
    out.loss[i] = loss_bytes(model, setting)
    at = Tokens.of(setting)
    out.messages[i] = 2 * element_bytes(setting) * at.outer * model.hidden
