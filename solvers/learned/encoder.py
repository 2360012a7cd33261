"""The encoder: messages pass along the edges of a graph, both ways, and give units embeddings."""

from __future__ import annotations

from typing import Any

import torch

from .features import UNIT_FEATURES, Scene

#: Rounds of messages.
ROUNDS = 3


def encoder(width: int) -> Any:
    """Return the layers: one for features, and one for each round of messages."""
    layers = {"features": torch.nn.Linear(UNIT_FEATURES, width)}
    for i in range(ROUNDS):
        layers[f"round{i}"] = torch.nn.Linear(3 * width, width)
    return torch.nn.ModuleDict(layers)


def encode(layers: Any, of: Scene) -> Any:
    """Return the embeddings of units, shape (U, width).

    In each round a unit takes the means of its predecessors' and its successors' embeddings.
    """
    source, target = torch.from_numpy(of.edges.T.copy())
    held = torch.relu(layers["features"](torch.from_numpy(of.units).float()))
    for i in range(ROUNDS):
        ahead, behind = _mean(held, source, target), _mean(held, target, source)
        held = held + torch.relu(layers[f"round{i}"](torch.cat((held, ahead, behind), dim=1)))
    return held


def _mean(held: Any, source: Any, target: Any) -> Any:
    total = torch.zeros_like(held).index_add(0, target, held[source])
    number = torch.zeros(len(held)).index_add(0, target, torch.ones(len(target)))
    return total / number.clamp(min=1)[:, None]
