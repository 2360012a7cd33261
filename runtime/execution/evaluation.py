"""Evaluation mode of traced training graphs: arguments of dropout and norms, and back."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import fx

#: Arguments that say that an operator is to train, and what they are in evaluation.
_OFF = {"train": False, "training": False, "use_input_stats": False, "dropout_p": 0.0}
_IN_TRAINING = "in_training"


def set_mode(module: fx.GraphModule, training: bool) -> None:
    """Set dropout and norms to evaluation, or to their traced mode.

    Norms without running statistics take those of the batch in both.
    """
    for n in module.graph.nodes:
        if n.op != "call_function":
            continue
        names = _argument_names(n.target)
        given: dict[str, Any] = dict(zip(names, n.args, strict=False)) | n.kwargs
        if "running_mean" in names and given.get("running_mean") is None:
            continue
        told = n.meta.setdefault(
            _IN_TRAINING, {name: given[name] for name in _OFF if name in given}
        )
        for name, value in told.items():
            _tell(n, names, name, value if training else _OFF[name])
        if n.target is torch.ops.aten.add_.Tensor and _counts_batches(n):
            n.args = (n.args[0], int(training))
    module.recompile()


def _tell(n: fx.Node, names: list[str], name: str, value: Any) -> None:
    if name in n.kwargs:
        n.kwargs = {**n.kwargs, name: value}
    else:
        position = names.index(name)
        n.args = (*n.args[:position], value, *n.args[position + 1 :])


def _argument_names(target: Any) -> list[str]:
    if isinstance(target, torch._ops.OpOverload):
        return [argument.name for argument in target._schema.arguments]
    try:
        return list(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # a function in C: only what is given by name is known
        return []


def _counts_batches(n: fx.Node) -> bool:
    read = n.args[0]
    return isinstance(read, fx.Node) and str(read.target).endswith("num_batches_tracked")
