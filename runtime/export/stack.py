"""Numbered layers of models, for launchers that count them."""

from __future__ import annotations

from ...instances import InputError
from .stages import ModuleStages


def first_number(path: str) -> str:
    """Return the path up to its first number: the item of the first list that it goes through.

    Examples
    --------
    >>> first_number("transformer.h.3.mlp"), first_number("transformer.wte")
    ('transformer.h.3', 'transformer.wte')
    """
    parts = path.split(".")
    for k, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: k + 1])
    return path


def stack(stages: ModuleStages, target: str) -> tuple[str, list[tuple[int, int, int]]]:
    """Return the path of the numbered layers of a model, and how each stage is made up.

    Of each stage: modules before the first layer, layers, modules after the last. Raises
    `InputError` if there is not one list of layers 0, 1, …, cut in this order.
    """
    lists: dict[str, list[int]] = {}
    for own in stages.modules:
        for module in own:
            head, _, last = module.rpartition(".")
            if last.isdecimal():
                lists.setdefault(head, []).append(int(last))
    if len(lists) != 1:
        found = f"{len(lists)} lists of layers ({', '.join(lists)})" if lists else "no list of them"
        raise InputError(f"{target}: it counts the layers of one stack; the model has {found}")
    ((name, numbers),) = lists.items()
    if numbers != list(range(len(numbers))):
        raise InputError(
            f"{target}: the layers of {name} do not run in the order 0 to {len(numbers) - 1}, "
            "one after the other; it counts them"
        )
    counts, seen = [], 0
    for own in stages.modules:
        flags = [module.rpartition(".")[0] == name for module in own]
        layers = sum(flags)
        before = sum(not flag for flag in flags) if seen == 0 and not layers else 0
        if layers:
            before, end = flags.index(True), len(flags) - flags[::-1].index(True)
            if layers < end - before or (before and seen):
                raise InputError(f"{target}: other modules run between the layers of {name}")
        seen += layers
        after = len(own) - before - layers
        if after and seen < len(numbers):
            raise InputError(f"{target}: other modules run between the layers of {name}")
        counts.append((before, layers, after))
    return name, counts
