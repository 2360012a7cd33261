"""Options of placement rules become rules of a problem."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..instances import Cluster, DeviceMapping, InputError, PlacementRules, Problem
from ..instances.common.errors import quote
from ..instances.formats.rules_files import load_fixed, load_rules
from ..instances.model.placement_rules import NO_RULES

T = TypeVar("T", bound=Problem)


def with_rules(
    problem: T,
    cluster: Cluster,
    *,
    pin: Sequence[str] | None,
    together: Sequence[str] | None,
    apart: Sequence[str] | None,
    max_stages: int | None,
    fixed: Path | None = None,
    file: Path | None = None,
) -> T:
    """Return the problem with the rules that options ask for, and those of a cluster file.

    Raises
    ------
    InputError
        If an option cannot be read, or a file is broken.
    """
    if isinstance(problem, DeviceMapping):
        return problem
    told = NO_RULES if file is None else load_rules(file)
    placed = () if fixed is None else load_fixed(fixed, problem, cluster)
    rules = PlacementRules(
        pins=(*told.pins, *(_pin(text) for text in pin or ())),
        together=(*told.together, *(_patterns(text, "--together") for text in together or ())),
        apart=(*told.apart, *(_patterns(text, "--apart") for text in apart or ())),
        max_stages=told.max_stages if max_stages is None else max_stages,
        fixed=(*told.fixed, *placed),
    )
    return replace(problem, placement_rules=rules)


def _pin(text: str) -> tuple[str, int]:
    pattern, _, number = text.rpartition("=")
    try:
        where = int(number) if pattern else None
    except ValueError:
        where = None
    if where is None:
        raise InputError(f"--pin: {quote(text)} is no PATTERN=NUMBER, such as 'embed*=0'")
    return pattern, where


def _patterns(text: str, option: str) -> tuple[str, ...]:
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"{option}: {quote(text)}: {error}; quotes come in pairs") from None
    if not found:
        raise InputError(f"{option}: it is empty; name patterns, such as 'attention* mlp*'")
    return found
