"""Configuration of torchtitan as an exported module leaves it, without torchtitan."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any


def trainer_config(text: str) -> Any:
    """Return a configuration that takes any field, after the module's function."""
    policies = ModuleType("torchtitan.distributed.activation_checkpoint")
    for name in ("FullAC", "SelectiveAC"):
        setattr(policies, name, SimpleNamespace(Config=lambda name=name: name))
    names = ["torchtitan", "torchtitan.distributed", policies.__name__]
    before = {name: sys.modules.get(name) for name in names}
    sys.modules |= dict.fromkeys(names, policies)
    try:
        space: dict[str, Any] = {}
        exec(compile(text, "planned.py", "exec"), space)
        parts = {name: SimpleNamespace() for name in ("parallelism", "training", "compile")}
        return space["planned"](SimpleNamespace(**parts))
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
