"""A stage of a plan as source of a class."""

from __future__ import annotations

import re

import torch
from torch import fx, nn

from ...instances import InputError
from ..execution.split import PieceModule

#: Constants of a model with more numbers than this do not belong into a script.
MOST_NUMBERS = 256

#: What fx imports by itself and the script has too.
_KNOWN = {"inf", "nan", "NoneType", "torch", "device", "fx_pytree", "pytree"}


def stage_class(piece: PieceModule, model: nn.Module, last: bool) -> str:
    """Return the source of the class ``StageK``.

    Raises
    ------
    InputError
        If the stage holds a large constant that the model does not, or code that is not torch's.
    """
    code = piece.module.graph.python_code("self")
    for name, value in code.globals.items():
        if name not in _KNOWN:
            raise InputError(
                f"python: stage {piece.index} calls {getattr(value, '__name__', name)}, which is "
                "not torch's; run the plan with stagecut run"
            )
    own = taken(piece.module.graph)
    lines = [f"class Stage{piece.index}(nn.Module):"]
    lines.append(f"    TAKES = {_described(piece, piece.inputs, False)}")
    lines.append(f"    GIVES = {_described(piece, piece.outputs, last)}")
    lines += ["", "    def __init__(self, model):", "        super().__init__()"]
    lines.append("        take(")
    lines.append("            self,")
    lines.append("            model,")
    constants = [name for name in own if not _is_the_models(piece, model, name)]
    lines += [f"            {name!r}," for name in own if name not in constants]
    lines.append("        )")
    lines += [f"        put(self, {name!r}, {_literal(piece, name)})" for name in constants]
    return "\n".join([*lines, "", *_forward(piece, code.src, last)])


def taken(graph: fx.Graph) -> tuple[str, ...]:
    """Return the names of the tensors and modules that a graph reads."""
    found = [str(n.target) for n in graph.nodes if n.op in ("get_attr", "call_module")]
    return tuple(dict.fromkeys(found))


def computed(graph: fx.Graph) -> tuple[str, ...]:
    """Return the names of what a graph computes, in order."""
    return tuple(n.name for n in graph.nodes if n.op not in ("placeholder", "output"))


def _forward(piece: PieceModule, source: str, last: bool) -> list[str]:
    """Return the lines of `forward`, as fx writes them, made to be read."""
    lines = []
    nodes = piece.module.graph.nodes
    around = {n.name: str(n.meta["around"]) for n in nodes if "around" in n.meta}
    for line in source.strip().splitlines():
        line = re.sub(r";  (\w+ = )+None$", "", line.rstrip())
        line = line.replace("torch.ops.aten.", "aten.")
        line = re.sub(r"device\(type='\w+'(, index=\d+)?\)", "DEVICE", line)
        if line.strip().startswith("return "):
            values = [_handed_on(piece, name, last) for name in piece.outputs]
            line = f"    return ({', '.join(values)},)"
        name = line.strip().partition(" = ")[0]
        if name in around:
            lines += [f"        with {around[name]}:", f"        {line}"]
        else:
            lines.append(f"    {line}")
    back = [name for name in piece.inputs if piece.values[name].grad]
    if back:
        lines.insert(1, f"        returns_whole({', '.join(back)})")
    return lines


def _handed_on(piece: PieceModule, name: str, last: bool) -> str:
    single = last and not piece.values[name].shape
    return f"{name}.reshape(1)" if single else f"{name}.contiguous()"


def _described(piece: PieceModule, names: tuple[str, ...], last: bool) -> str:
    parts = []
    for name in names:
        value = piece.values[name]
        shape = (1,) if last and not value.shape else tuple(value.shape)
        parts.append(f"({shape}, {value.dtype}, {value.grad})")
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def _find(root: nn.Module, name: str) -> object:
    found: object = root
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _is_the_models(piece: PieceModule, model: nn.Module, name: str) -> bool:
    mine, theirs = _find(piece.module, name), _find(model, name)
    if isinstance(mine, nn.Module):
        return isinstance(theirs, nn.Module)
    return isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor)


def _literal(piece: PieceModule, name: str) -> str:
    value = _find(piece.module, name)
    if not isinstance(value, torch.Tensor):
        raise InputError(f"python: {name} is no tensor of the model; run it with stagecut run")
    if value.numel() > MOST_NUMBERS:
        raise InputError(
            f"python: the constant {name} has {value.numel()} numbers, too many for a script; "
            "make it a buffer of the model"
        )
    return f"torch.tensor({value.tolist()!r}, dtype={value.dtype})"
