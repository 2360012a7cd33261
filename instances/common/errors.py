"""Errors that users can act on: one line each, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from .escape import one_line


class StagecutError(Exception):
    """Base of every error that Stagecut raises on purpose.

    The message is kept on one line and printable, whatever names a file puts into it.

    Examples
    --------
    >>> import stagecut
    >>> try:
    ...     stagecut.load("no such workload")
    ... except stagecut.StagecutError as error:
    ...     print(type(error).__name__)
    InputError
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class InputError(StagecutError):
    """Something given by the user is wrong: a file, an option, or a contradiction of two.

    The message is one line that names the file or option, the field, the id and the remedy.

    Examples
    --------
    >>> import stagecut
    >>> stagecut.Throughput(pipeline="1f1b")
    Traceback (most recent call last):
    stagecut.instances.common.errors.InputError: pipeline: "1f1b" is not one of pipedream, gpipe
    """


class InfeasibleError(StagecutError):
    """No plan exists; the message names the device, colour or number of bytes at fault.

    Examples
    --------
    >>> import stagecut
    >>> issubclass(stagecut.InfeasibleError, stagecut.StagecutError)
    True
    """


class VerificationError(StagecutError):
    """A plan breaks a rule of its problem, or claims an objective that it does not have.

    Examples
    --------
    >>> import stagecut
    >>> from dataclasses import replace
    >>> workload = stagecut.load("gpt2-xl")
    >>> plan = stagecut.solve(workload, stagecut.accelerators_and_cpus(2), method="greedy").plan
    >>> try:
    ...     stagecut.verify(workload, replace(plan, objective=plan.objective / 2))
    ... except stagecut.VerificationError as error:
    ...     print("it claims objective" in str(error))
    True
    """


class UncheckedError(VerificationError):
    """A bound that is neither proved nor refuted, of a plan that keeps to its problem's rules.

    Examples
    --------
    >>> import stagecut
    >>> from dataclasses import replace
    >>> workload = stagecut.load("gpt2-xl")
    >>> plan = stagecut.solve(workload, stagecut.accelerators_and_cpus(2), method="greedy").plan
    >>> try:
    ...     stagecut.check_bound(workload, replace(plan, bound=-float("inf")))
    ... except stagecut.instances.UncheckedError as error:
    ...     print(error)
    bound: there is none to check; plan with method auto for one
    """


def quote(value: object, width: int = 40) -> str:
    """Return `value` as a file would write it, cut to `width` characters.

    Examples
    --------
    >>> quote("a"), quote(None), quote(float("inf"))
    ('"a"', 'null', 'Infinity')
    """
    if isinstance(value, dict | list | tuple):
        return "{…}" if isinstance(value, dict) else "[…]"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"  # printing it may be forbidden
    if isinstance(value, str):
        value = value if len(value) <= width else value[: width - 1] + "…"
        return json.dumps(value, ensure_ascii=False)
    plain = value is None or isinstance(value, bool | int | float)
    return json.dumps(value) if plain else str(value)[:width]


def near_names(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question that suggests names similar to a wrong one; `otherwise` if there are none.

    Examples
    --------
    >>> near_names("llama3-8", ["llama3-8b", "gpt2"], "see --help")
    'did you mean llama3-8b?'
    """
    close = get_close_matches(name, dict.fromkeys(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else otherwise


@contextmanager
def prefix_errors(file: str, name: str) -> Iterator[None]:
    """Prefix InputErrors about the value `name` with its `file`."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(f"{file}: "):
            raise
        raise InputError(f"{file}: {str(error).removeprefix(f'{name}: ')}") from None


def all_differ(names: Iterable[int | str], what: str) -> None:
    """Raise InputError if a name or id occurs twice; `what` is the kind of thing that has it."""
    seen: set[int | str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{what} {name} occurs twice; all must differ")
        seen.add(name)
