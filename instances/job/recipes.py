"""Published recipes: how NVIDIA trains models on its own devices, and what an iteration takes.

``recipes.csv`` has the fastest published run of each model, device, number of devices and precision
(NVIDIA-NeMo/Megatron-Bridge, ``docs/performance-summary.md`` and its archive, layouts from
``src/megatron/bridge/perf_recipes``). A column is a field of `Layout`; empty: its default.
`benchmarks/recipes.py` writes it from files of published runs.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ..costs.clusters import training_cluster
from ..costs.description import ModelDescription
from ..costs.hardware import TrainingCluster
from ..costs.layout import RECIPES, Layout, Overlap, Recipe
from ..costs.models import shipped_model

#: What stands in place of an empty collection, so that a column that is there is not a default.
NONE = "none"


@dataclass(frozen=True)
class PublishedRecipe:
    """A published run of a shipped model.

    Parameters
    ----------
    name, further
        Of the model, and its blocks that predict further tokens (multi-token prediction).
    devices
        The cluster, as `training_cluster` takes it.
    layout
        How it was divided.
    seconds
        Measured, of one iteration.
    source
        Page or recipe.
    """

    name: str
    further: int
    devices: str
    layout: Layout
    seconds: float
    source: str

    @property
    def model(self) -> ModelDescription:
        """What was trained."""
        named = shipped_model(self.name)
        return replace(named, mtp=(named.mtp or (named.blocks[-1],))[:1] * self.further)

    @property
    def cluster(self) -> TrainingCluster:
        """What it ran on."""
        return training_cluster(self.devices)


@cache
def published_recipes() -> tuple[PublishedRecipe, ...]:
    """Return the shipped recipes.

    Examples
    --------
    >>> from stagecut.instances.job.recipes import published_recipes
    >>> next(r.layout.pipeline for r in published_recipes() if r.devices == "h100:8x128")
    8
    """
    text = (files(__package__) / "recipes.csv").read_text(encoding="utf-8")
    return tuple(
        PublishedRecipe(
            row.pop("model"),
            int(row.pop("further")),
            row.pop("cluster"),
            source=row.pop("source"),
            seconds=float(row.pop("seconds")),
            layout=layout_of(row),
        )
        for row in csv.DictReader(text.splitlines())
    )


def layout_of(row: Mapping[str, str]) -> Layout:
    """Return the layout that the columns of a row say."""
    default = Layout()
    return Layout(**{key: _value(key, text, default) for key, text in row.items() if text})


def _value(key: str, text: str, default: Layout) -> Any:
    words = [] if text == NONE else text.split()
    if key == "recipe":
        numbers: dict[str, Any] = {}
        for word in words[1:]:
            name, _, number = word.partition("=")
            numbers[name] = float(number)
        return replace(RECIPES[words[0]], **numbers)
    if key == "overlap":
        return Overlap(**{one.name: one.name in words for one in fields(Overlap)})
    if key == "stage_layers":
        runs = [tuple(map(int, word.split("x"))) for word in words]
        return tuple(run[0] for run in runs for _ in range(run[1] if len(run) > 1 else 1))
    if key == "recompute":
        return frozenset(words)
    usual = getattr(default, key)
    if isinstance(usual, bool):
        return text == "1"
    return int(text) if usual is None else type(usual)(text)


def row_of(layout: Layout) -> dict[str, str]:
    """Return the columns of a layout that differ from the defaults."""
    default = Layout()
    names = (one.name for one in fields(Layout))
    return {n: _text(n, layout) for n in names if getattr(layout, n) != getattr(default, n)}


def _text(key: str, layout: Layout) -> str:
    value = getattr(layout, key)
    if isinstance(value, Recipe):
        usual = RECIPES[value.name]
        given = [one.name for one in fields(Recipe)]
        changed = [n for n in given if getattr(value, n) != getattr(usual, n)]
        return " ".join([value.name, *(f"{n}={getattr(value, n):g}" for n in changed)])
    if isinstance(value, Overlap):
        names = (one.name for one in fields(Overlap))
        return " ".join(n for n in names if getattr(value, n)) or NONE
    if key == "stage_layers":
        runs: list[list[int]] = []
        for count in value:
            if not runs or runs[-1][0] != count:
                runs.append([count, 0])
            runs[-1][1] += 1
        return " ".join(f"{count}x{times}" if times > 1 else str(count) for count, times in runs)
    if isinstance(value, frozenset):
        return " ".join(sorted(value)) or NONE
    return str(int(value)) if isinstance(value, bool) else str(value)
