"""Plans as a Python script that runs them with torch alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ...instances import InputError, StagecutError
from ...instances.common.errors import quote
from ...instances.common.escape import docstring
from ..execution.split import PieceModule
from ..schedules import Schedule, read_csv, write_csv
from ..schedules.actions import Action, Kind, schedule_of
from .python_regions import inlined
from .python_stage import computed, stage_class, taken
from .python_template import TEMPLATE


@dataclass(frozen=True)
class Script:
    """What a script says, for comparison.

    Parameters
    ----------
    schedule
        Its text: a row per rank.
    nodes
        Of each stage: names of the traced model's nodes that it computes, in order.
    tensors
        Of each stage: names of the tensors (or modules) that it takes.
    training
        Whether it has backward passes.
    """

    schedule: str
    nodes: tuple[tuple[str, ...], ...]
    tensors: tuple[tuple[str, ...], ...]
    training: bool


def python_script(
    model: nn.Module,
    pieces: Sequence[PieceModule],
    schedule: Schedule,
    *,
    factory: str,
    call: str,
    training: bool = True,
    title: str = "A plan",
) -> str:
    """Return the script, read back and compared.

    Parameters
    ----------
    model, pieces
        The model, and the pieces of the plan in order.
    schedule
        A row per rank.
    factory
        ``module:factory`` or ``file.py:factory``, which makes the model.
    call
        The expression that makes it, such as ``make(batch=8)``.

    Raises
    ------
    InputError
        If a weight is on several ranks, the model has large constants or code that is not
        torch's, or an input is a single number.
    """
    pieces = [replace(piece, module=inlined(piece.module)) for piece in pieces]
    rank_of = {a.stage: r for r in range(len(schedule.actions)) for a in schedule.of(r)}
    _check(pieces, rank_of)
    order = schedule if training else with_backward(schedule)
    loss_words, loss = _loss(pieces[-1], training)
    text = TEMPLATE.format(
        title=docstring(title),
        ranks=len(schedule.actions),
        count=len(pieces),
        final=len(pieces) - 1,
        where="\n".join(_line(piece, rank_of[piece.index]) for piece in pieces),
        importing=_importing(factory),
        call=call,
        training=training,
        microbatches=schedule.microbatches,
        schedule=write_csv(order),
        stages="\n\n\n".join(stage_class(p, model, p is pieces[-1]) for p in pieces),
        loss_words=loss_words,
        loss=loss,
    )
    said = Script(
        write_csv(order),
        tuple(computed(p.module.graph) for p in pieces),
        tuple(tuple(sorted(taken(p.module.graph))) for p in pieces),
        training,
    )
    if read_script(text) != said:
        raise StagecutError("python: what was written reads back as another plan: a fault of ours")
    return text


def read_script(text: str) -> Script:
    """Return what a script says."""
    values: dict[str, Any] = {}
    nodes, tensors = [], []
    for part in ast.parse(text).body:
        if isinstance(part, ast.Assign):
            name = getattr(part.targets[0], "id", "")
            if name in ("SCHEDULE", "TRAINING"):
                values[name] = ast.literal_eval(part.value)
        if isinstance(part, ast.ClassDef) and re.fullmatch(r"Stage\d+", part.name):
            body = {item.name: item for item in part.body if isinstance(item, ast.FunctionDef)}
            inside = [s.body if isinstance(s, ast.With) else [s] for s in body["forward"].body]
            made = [s.targets[0] for own in inside for s in own if isinstance(s, ast.Assign)]
            nodes.append(tuple(target.id for target in made if isinstance(target, ast.Name)))
            calls = [n for n in ast.walk(body["__init__"]) if isinstance(n, ast.Call)]
            names = [_names(call) for call in calls]
            tensors.append({name for own in names for name in own})
    read_csv(values["SCHEDULE"])
    return Script(
        values["SCHEDULE"], tuple(nodes), tuple(map(tuple, map(sorted, tensors))),
        values["TRAINING"],
    )  # fmt: skip


def with_backward(schedule: Schedule) -> Schedule:
    """Return an inference schedule with the backward passes that torch wants to see behind it.

    Torch's `eval` passes over them.
    """
    rows = []
    for r in range(len(schedule.actions)):
        own = schedule.of(r)
        stages = sorted({action.stage for action in own}, reverse=True)
        behind = [Action(s, Kind.B, m) for m in range(schedule.microbatches) for s in stages]
        rows.append([*own, *behind])
    return schedule_of(rows, name=schedule.name, microbatches=schedule.microbatches)


def _names(call: ast.Call) -> list[str]:
    """Return the names of tensors that a call of `take` or `put` registers."""
    called = call.func.id if isinstance(call.func, ast.Name) else ""
    given = {"take": call.args[2:], "put": call.args[1:2]}.get(called, [])
    return [ast.literal_eval(argument) for argument in given]


def _check(pieces: Sequence[PieceModule], rank_of: Mapping[int, int]) -> None:
    first = pieces[0]
    if any(not first.values[name].shape for name in first.inputs):
        raise InputError("python: an input of the model is a single number; torch cuts batches")
    home: dict[str, int] = {}
    for piece in pieces:
        for name in piece.parameters:
            rank = home.setdefault(name, rank_of[piece.index])
            if rank != rank_of[piece.index]:
                raise InputError(
                    f"python: {name} is on ranks {rank} and {rank_of[piece.index]}; its gradients "
                    "would have to be added up: keep it on one device (profile --tied colour)"
                )


def _line(piece: PieceModule, rank: int) -> str:
    """Return what a stage holds, in a line."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in piece.parameters))
    held = f"{modules[0]} … {modules[-1]}" if len(modules) > 2 else ", ".join(modules)
    return f"    stage {piece.index} on rank {rank}: {docstring(held) or 'no weights'}"


def _importing(factory: str) -> str:
    """Return the lines that import the factory."""
    place, _, name = factory.rpartition(":")
    module = place.rpartition("/")[2].removesuffix(".py")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise InputError(
            f"--model: a script imports {quote(factory)} by its name, which is none in Python; "
            "rename file or factory"
        )
    if not place.endswith(".py"):
        return f'sys.path.insert(0, "")\nfrom {place} import {name}'
    folder = place.rpartition("/")[0] or "."
    return f"sys.path.insert(0, {folder!r})\nfrom {module} import {name}"


def _loss(piece: PieceModule, training: bool) -> tuple[str, str]:
    """Return what to say of the loss, and the body of `loss_of`: the model's own, if it has one."""
    values = [piece.values[name] for name in piece.outputs]
    derivable = [k for k, value in enumerate(values) if value.grad]
    single = [k for k in derivable if not values[k].shape or set(values[k].shape) == {1}]
    if single:
        return " The model's own.", f"    return outputs[{single[0]}].sum() / MICROBATCHES"
    means = " + ".join(f"outputs[{k}].float().mean()" for k in derivable)
    words = " Yours: this stands for one, and teaches nothing." if training else ""
    return words, f"    return ({means or 'outputs[0].sum()'}) / MICROBATCHES"
