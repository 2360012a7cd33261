"""Descriptions of your own models: the layers of a profile, alike ones as one layer type.

A workload of layers (`stagecut profile --train --layers`) has the seconds and bytes of each layer,
measured where it ran or estimated, by tensor degree if it was sharded (`--degrees 1,2,4`). Layers
with as many weights and operations are taken for one type, whose numbers are their means: what
sets them apart is how they were measured. A microbatch is the batch that was profiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..common.errors import InputError
from ..common.units import TIME_UNITS
from ..model.layers import Layers
from ..model.training_layers import layers_of
from ..model.workload import Workload
from .description import Block, Measured, ModelDescription, ProfiledLayer


def profiled_model(workload: Workload) -> ModelDescription:
    """Return the description of a profiled model, of layers that run one after the other.

    InputError if it has no layers, they are no chain, or no unit of time or number of weights is
    known.
    """
    layers, name = layers_of(workload), workload.name
    unit = TIME_UNITS.get(workload.time_unit)
    if unit is None:
        raise InputError(f"{name}: it names no unit of time; add time_unit, such as ms")
    for key in ("parameters", "flops"):
        if key not in workload.extra:
            raise InputError(
                f"{name}: its layers do not say their {key}; profile the model with --train "
                "--layers"
            )
    order = list(workload.order)
    place = {node: k for k, node in enumerate(order)}
    steps = sorted((place[a], place[b]) for a, b in workload.edges.tolist())
    if steps != [(k, k + 1) for k in range(workload.n - 1)]:
        raise InputError(
            f"{name}: its layers are no chain, which pipeline stages of an estimate are cut from; "
            "profile with --depth 1, or such that every block is one layer"
        )
    counts = np.stack([workload.extra["parameters"], workload.extra["flops"]], axis=1)
    alike: dict[tuple[float, ...], list[int]] = {}
    for node in order:
        alike.setdefault(tuple(counts[node].tolist()), []).append(node)
    types = {
        node: Block(profiled=_layer_type(layers, members, int(weights), flops, unit, name), norms=0)
        for (weights, flops), members in alike.items()
        for node in members
    }
    # What a message between two layers typically carries, as elements of 16 bits.
    carried = float(np.median(layers.edge_bytes)) / 2 if len(layers.edge_bytes) else 0.0
    return ModelDescription(
        name,
        max(1, round(carried)),
        0,
        tuple(types[node] for node in order),
        head=False,
        final_norm=False,
        source=f"profile of {name}",
    )


def _layer_type(
    layers: Layers, members: Sequence[int], weights: int, flops: float, unit: float, name: str
) -> ProfiledLayer:
    """Return the means of layers that are alike, at the degrees that all of them have."""
    by_node = [_by_degree(layers, node, unit) for node in members]
    degrees = sorted(set.intersection(*(set(one) for one in by_node)))
    if not degrees:
        raise InputError(f"{name}: a layer has no configuration without recomputation")
    means = []
    for degree in degrees:
        rows = np.array([one[degree] for one in by_node]).mean(axis=0)
        means.append(Measured(degree, *rows.tolist()))
    return ProfiledLayer(weights, flops, tuple(means))


def _by_degree(layers: Layers, node: int, unit: float) -> dict[int, tuple[float, ...]]:
    """Return forward, backward, part of the weights, kept and entering bytes by degree.

    Of several shardings the fastest counts. With recomputation a layer takes its forward pass
    more, which tells the two passes apart.
    """
    own = np.flatnonzero(layers.node == node)
    whole = max((layers.weight_bytes[c] for c in own if layers.degree[c] == 1), default=0.0)
    found: dict[int, tuple[float, ...]] = {}
    for c in own[np.argsort(layers.time[own], kind="stable")]:
        degree = int(layers.degree[c])
        if layers.recomputes[c] or degree in found:
            continue
        again = [
            d for d in own
            if layers.recomputes[d] and layers.degree[d] == degree
            and layers.label[d].removesuffix("recompute").rstrip("-") in (layers.label[c], "")
        ]  # fmt: skip
        time = float(layers.time[c]) * unit
        kept = float(layers.bytes_per_microbatch[c])
        forward, entering = time / 3, kept
        if again:
            forward = min(time, float(layers.time[again[0]]) * unit - time)
            entering = float(layers.bytes_per_microbatch[again[0]])
        part = float(layers.weight_bytes[c]) / whole if whole else 1 / degree
        found[degree] = (forward, time - forward, min(1.0, part), max(kept, entering), entering)
    return found
