"""Model descriptions by name, from a Hugging Face configuration, or of your own profiled model.

Shipped descriptions are configurations of checkpoints, reduced to the fields that are read:
``models.json`` has a line for each, with its source and its other names.

Your own model is described by a workload of layers (`stagecut profile --train --layers`), which has
the seconds and bytes of each layer, measured or estimated, by tensor degree if it was sharded
(`--degrees 1,2,4`). Layers with equal numbers of weights and operations are one layer type with
their mean values, since only noise of the measurement distinguishes them. The profiled batch is one
microbatch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import InputError, near_names, quote
from ..common.units import TIME_UNITS
from ..formats.files import read_workload
from ..formats.source import read_source
from ..model.layers import Layers
from ..model.training_layers import layers_of
from ..model.workload import Workload
from .description import Block, Measured, ModelDescription, ProfiledLayer
from .hugging_face import from_config, read_config


def model_description(model: str | Path | Workload) -> ModelDescription:
    """Return the description of a model given by name, by ``config.json``, or by its profile.

    Parameters
    ----------
    model
        A name such as ``llama3-70b``, in any spelling; the path of a Hugging Face ``config.json``
        or of its folder; or a workload of layers (`profile` and `training_layers`, or
        `layers_by_degree`) or its file, whose microbatch is the batch that was profiled.

    Returns
    -------
    ModelDescription
        Description of the model; of a model that also takes images or sound, of its text model.

    Raises
    ------
    InputError
        If the name or file is unknown, or the file has an unknown architecture or a wrong field.

    Examples
    --------
    >>> import stagecut
    >>> stagecut.model_description("mixtral-8x7b").parameters
    46702792704
    """
    if isinstance(model, Workload):
        return profiled_model(model)
    path = Path(model)
    looks_like_file = isinstance(model, Path) or str(model).endswith(".json")
    try:
        there, folder = path.exists(), path.is_dir()
    except (OSError, ValueError):
        there = folder = False
    if folder and (looks_like_file or (path / "config.json").is_file()):
        path, folder = path / "config.json", False
    if looks_like_file or (there and not folder):
        source = read_source(path)  # once, as it may be a pipe
        if source.format_name:
            return profiled_model(read_workload(source))
        return read_config(source)
    try:
        return shipped_model(str(model))
    except InputError:
        if there:
            raise InputError(f"{model}: the folder has no config.json; name its file") from None
        raise


def shipped_models() -> tuple[str, ...]:
    """Return the names of the shipped descriptions, sorted.

    Examples
    --------
    >>> "llama3.1-405b" in shipped_models()
    True
    """
    return tuple(sorted(_shipped()))


def shipped_model(name: str) -> ModelDescription:
    """Return a shipped description by its name, in any spelling.

    Names are, for example, ``llama3-70b``, ``Llama-3.1-405B`` or ``meta-llama/Llama-3.1-405B``;
    InputError if no description has the name.

    Examples
    --------
    >>> shipped_model("Llama-3.1-405B").parameters
    405853388800
    """
    wanted = _plain(name.rpartition("/")[2])
    for known, entry in _shipped().items():
        if wanted in {_plain(known), *map(_plain, entry.get("also", ()))}:
            return from_config(entry["config"], name=known, source=entry["source"])
    names = shipped_models()
    hint = near_names(name.lower(), names, f"shipped are {', '.join(names)}")
    raise InputError(f"model: {quote(name)} is no shipped description and no config.json; {hint}")


def _plain(name: str) -> str:
    """Return a name in lower case without separators and suffixes of fine-tuned versions."""
    tuned = re.sub(
        r"(?i)[-_ ](instruct|base|chat|hf|it|pt|v0\.\d|bf16|uncased)(?![a-z0-9])", "", name
    )
    return re.sub(r"[^a-z0-9.]", "", tuned.lower())


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """Return the entries of models.json by name: configuration, source and other names."""
    text = (files(__package__) / "models.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def profiled_model(workload: Workload) -> ModelDescription:
    """Return the description of a profiled model whose layers form a chain.

    Several layers that read the model's inputs, such as embeddings, may precede the chain.
    InputError if the workload has no layers, they do not form a chain, or no unit of time, number
    of weights or number of operations is known.
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
    order = _in_line(workload)
    counts = np.stack([workload.extra["parameters"], workload.extra["flops"]], axis=1)
    alike: dict[tuple[float, ...], list[int]] = {}
    for node in order:
        alike.setdefault(tuple(counts[node].tolist()), []).append(node)
    types = {
        node: Block(profiled=_layer_type(layers, members, int(weights), flops, unit, name), norms=0)
        for (weights, flops), members in alike.items()
        for node in members
    }
    said = workload.provenance
    where = said.get("accelerator", "").partition(":")[0] or said.get("device", "")
    # The median message between two layers, in elements of 16 bits, stands for the model's width.
    carried = float(np.median(layers.edge_bytes)) / 2 if len(layers.edge_bytes) else 0.0
    return ModelDescription(
        name,
        max(1, round(carried)),
        0,
        tuple(types[node] for node in order),
        head=False,
        final_norm=False,
        source=f"profile of {name}{f' on {where}' if where else ''}",
    )


def _in_line(workload: Workload) -> list[int]:
    """Return the layers in the order in which they run, those without predecessors first."""
    reads = {b for _, b in workload.edges.tolist()}
    order = sorted(workload.order, key=lambda node: node in reads)
    first = workload.n - len(reads)
    place = {node: k for k, node in enumerate(order)}
    for a, b in workload.edges.tolist():
        if place[b] != max(place[a] + 1, first):
            raise InputError(
                f"{workload.name}: its layers are no chain, which pipeline stages of an estimate "
                f"are cut from: {workload.names[b]} reads {workload.names[a]}, and others run "
                "between them; profile with another --depth, such that every block is one layer"
            )
    return order


def _layer_type(
    layers: Layers, members: Sequence[int], weights: int, flops: float, unit: float, name: str
) -> ProfiledLayer:
    """Return the mean measurements of equal layers, at the tensor degrees that all of them have."""
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
    """Return the fields of `Measured` after `degree`, by tensor degree.

    The fastest of several shardings counts. The forward pass is the additional time with
    recomputation, or a third of the time if there is no such configuration.
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
            forward = min(time, max(0.0, float(layers.time[again[0]]) * unit - time))
            entering = float(layers.bytes_per_microbatch[again[0]])
        part = float(layers.weight_bytes[c]) / whole if whole else 1 / degree
        found[degree] = (forward, time - forward, min(1.0, part), max(kept, entering), entering)
    return found
