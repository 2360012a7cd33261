"""The scheduler: group by group, the largest first, which device runs it.

A device is known by its kind (how fast it is at this group, whether it is a host, its memory) and
by what it has to do already, so that devices of a kind are alike; of those of a kind that have
nothing to do yet only the first is offered.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...formulations.throughput.whole_bytes import room_of
from ...instances.common.arrays import Bools, Floats, Ints
from .features import LARGEST, Scene
from .group_costs import GroupCosts
from .partitioner import Choices, draw, masked

#: Features of a device.
DEVICE_FEATURES = 8
_LIMIT = 4.0


def scheduler(width: int) -> Any:
    """Return the layers that score a device."""
    return torch.nn.Sequential(
        torch.nn.Linear(width + DEVICE_FEATURES, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 1),
    )


def schedule(
    layers: Any,
    embedded: Any,
    of: Scene,
    costs: GroupCosts,
    target: Floats,
    rng: np.random.Generator,
    *,
    most: Ints,
) -> tuple[Ints, Choices]:
    """Place the groups; return the device of each group, (B, G), and the decisions.

    Parameters
    ----------
    most
        Shape (D,): groups that each device takes at most.
    """
    batch, groups, _ = costs.load.shape
    rows, kind = np.arange(batch), of.kind_of
    order = np.argsort(-costs.load.min(axis=2), axis=1, kind="stable")
    device = np.zeros((batch, groups), np.int64)
    load, memory = np.zeros((batch, len(kind))), np.zeros((batch, len(kind)))
    taking = np.zeros((batch, len(kind)), np.int64)
    features, allowed, chosen, logs = [], [], [], []
    with torch.no_grad():
        pooled = torch.from_numpy(costs.part_of).float() @ embedded
        for step in range(groups):
            which = order[:, step]
            own = costs.load[rows, which][:, kind]
            needs = memory + costs.memory[rows, which][:, None]
            able = costs.supported[rows, which][:, kind] > 0
            free: Bools = taking < most
            busy = taking > 0
            may: Bools = able & (needs <= room_of(of.room[kind])) & free
            may &= _first_idle(busy, kind)
            may = np.where(may.any(axis=1, keepdims=True), may, free)
            # an empty group takes the first: any is as good
            full = np.asarray(costs.part_of[rows, which].any(axis=1))
            may &= full[:, None] | (np.cumsum(may, axis=1) == 1)
            seen = _features(of, own, load, needs, busy, target[:, None])
            held = pooled[torch.arange(batch), torch.from_numpy(which)]
            scores = _score(layers, held, torch.from_numpy(seen))
            both = masked(scores, torch.from_numpy(may)).numpy().astype(np.float64)
            taken = draw(both, rng)
            device[rows, which] = taken
            load[rows, taken] += own[rows, taken]
            memory[rows, taken] = needs[rows, taken]
            taking[rows, taken] += full
            features.append(seen)
            allowed.append(may)
            chosen.append(taken)
            logs.append(both[rows, taken])
    stacked = (np.stack(made, axis=1) for made in (features, allowed, chosen, logs))
    return device, Choices(order, *stacked)


def _features(
    of: Scene, own: Floats, load: Floats, needs: Floats, busy: Bools, target: Floats
) -> Floats:
    kind = of.kind_of
    with np.errstate(all="ignore"):
        held = np.nan_to_num(needs / of.room[kind], nan=0.0, posinf=_LIMIT)
    slowest = own / np.maximum(own.min(axis=1, keepdims=True), 1e-9)
    found = np.broadcast_arrays(
        own / target,
        load / target,
        (own + load) / target,
        held,
        of.host[kind],
        busy,
        np.log1p(np.minimum(slowest, LARGEST)),
        (own + load) / np.maximum((own + load).min(axis=1, keepdims=True), 1e-9) - 1,
    )
    clipped = np.clip(np.stack(found, axis=2), -_LIMIT, _LIMIT)
    features: Floats = clipped.astype(np.float32)
    return features


def _first_idle(busy: Bools, kind: Ints) -> Bools:
    """Return which devices have work, or are the first of their kind that has none."""
    first = np.zeros(busy.shape, np.bool_)
    rows = np.arange(len(busy))
    for k in np.unique(kind):
        own = np.flatnonzero(kind == k)
        first[rows, own[np.argmin(busy[:, own], axis=1)]] = True
    offered: Bools = busy | first
    return offered


def _score(layers: Any, held: Any, features: Any) -> Any:
    wide = held.unsqueeze(-2).expand(*features.shape[:-1], held.shape[-1])
    return layers(torch.cat((wide, features), dim=-1)).squeeze(-1)


def schedule_log_probabilities(layers: Any, embedded: Any, costs: Floats, made: Choices) -> Any:
    """Return the logarithms of the probabilities of all choices, (B, G, D), with gradients.

    Parameters
    ----------
    costs
        `part_of` of the group costs.
    """
    pooled = torch.from_numpy(costs).float() @ embedded
    index = torch.from_numpy(made.subject)[:, :, None].expand(-1, -1, pooled.shape[-1])
    scores = _score(layers, pooled.gather(1, index), torch.from_numpy(made.features))
    return masked(scores, torch.from_numpy(made.allowed))
