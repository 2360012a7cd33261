"""Model descriptions by name, by file, or of your own model.

Shipped descriptions are configurations of checkpoints, cut down to the fields that are read:
``models.json`` has a line for each, with its source and other names that it goes by.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..common.errors import InputError, quote
from ..formats.files import load
from ..model.workload import Workload
from .description import ModelDescription
from .hugging_face import from_config, read_config
from .profiled import profiled_model


def model_description(model: str | Path | Workload) -> ModelDescription:
    """Return a model's description: by its name, of a ``config.json``, or of your own model.

    Parameters
    ----------
    model
        Such as ``llama3-70b``, in any spelling; the path of a Hugging Face ``config.json`` or of
        its folder; or a workload of layers (`profile` and `training_layers`, or `layers_by_degree`)
        or its file, whose microbatch is the batch that was profiled.

    Returns
    -------
    ModelDescription
        Of models that also see or hear, the text model's.

    Raises
    ------
    InputError
        If there is none of these, or the file is of an unknown architecture or wrong.

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
        there = path.is_dir() or path.is_file()
    except (OSError, ValueError):
        there = False
    if looks_like_file or (there and (path.is_file() or (path / "config.json").is_file())):
        return profiled_model(load(path)) if _is_workload(path) else read_config(path)
    return shipped_model(str(model))


def _is_workload(path: Path) -> bool:
    """Return whether a file is one of Stagecut's workloads, and not a configuration."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and str(content.get("format", "")).startswith("stagecut")


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

    Such as ``llama3-70b``, ``Llama-3.1-405B`` or ``meta-llama/Llama-3.1-405B``; InputError if there
    is none.

    Examples
    --------
    >>> shipped_model("Llama-3.1-405B").parameters
    405853388800
    """
    wanted = _plain(name.rpartition("/")[2])
    for known, entry in _shipped().items():
        if wanted in {_plain(known), *map(_plain, entry.get("also", ()))}:
            return from_config(entry["config"], name=known, source=entry["source"])
    raise InputError(
        f"model: {quote(name)} is no shipped description and no config.json; "
        f"shipped are {', '.join(shipped_models())}"
    )


def _plain(name: str) -> str:
    """Return a name without what spellings differ in, and without what says how it was tuned."""
    tuned = re.sub(
        r"(?i)[-_ ](instruct|base|chat|hf|it|pt|v0\.\d|bf16|uncased)(?![a-z0-9])", "", name
    )
    return re.sub(r"[^a-z0-9.]", "", tuned.lower())


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """Return the entries of models.json: their configurations, by name."""
    text = (files(__package__) / "models.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries
