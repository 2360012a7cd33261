"""Learned placement: a policy of neural networks, trained by PPO and imitation. Needs torch."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

from ...formulations.task import Task
from ...instances.common.errors import quote

#: Options of the method: a policy file, and seconds of learning from the placements drawn.
LEARNED_OPTIONS: dict[str, tuple[str, ...]] = {"policy": (), "fine-tune": ()}


def no_policy(method: str, task: Task[Any]) -> str | None:
    """Return why the method cannot run: without torch, or with invalid seconds; None if it can."""
    if find_spec("torch") is None:
        return (
            f"method: {method} needs torch, which is not installed; in Stagecut's folder: "
            "pip install -c constraints.txt '.[learned]'"
        )
    text = task.options.get("fine-tune", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        return f"fine-tune: {quote(text)}; it must be a number of seconds of at least 0"
    return None
