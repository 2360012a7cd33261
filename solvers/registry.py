"""Which methods there are, by problem and name."""

from __future__ import annotations

from typing import Any

from ..formulations.task import Task
from ..instances import InputError, Problem
from ..instances.common.errors import quote
from .core.method import Method
from .job import methods as job
from .latency import methods as latency
from .mapping import methods as mapping
from .sharding import methods as sharding
from .throughput import methods as throughput

#: Problem → name → method.
METHODS: dict[str, dict[str, Method[Any]]] = {
    "throughput": throughput.METHODS,
    "mapping": mapping.METHODS,
    "pipeline": job.METHODS,
    "latency": latency.METHODS,
    "sharding": sharding.METHODS,
}


def method_of(problem: str, name: str) -> Method[Any]:
    """Return a method of a problem.

    Raises
    ------
    InputError
        If there is none of this name, or it takes nothing behind a colon; the message names those
        there are.
    """
    return METHODS[problem][split_argument(problem, name)[0]]


def split_argument(problem: str, method: str) -> tuple[str, dict[str, str]]:
    """Return the name of a method and its option, given as ``NAME`` or ``NAME:OPTION``.

    Raises
    ------
    InputError
        As `method_of`.

    Examples
    --------
    >>> split_argument("pipeline", "deepspeed-type:conv|linear")
    ('deepspeed-type', {'type': 'conv|linear'})
    """
    name, colon, value = method.partition(":")
    known = METHODS[problem]
    if name not in known:
        raise InputError(f"method: no {name!r} for {problem}; use one of {', '.join(known)}")
    if not colon:
        return name, {}
    if not known[name].argument:
        raise InputError(f"method: {name} takes nothing behind a colon; write {name}")
    return name, {known[name].argument: value}


def supported_method(task: Task[Problem], method: str) -> Method[Any]:
    """Return the method of this name, checked to support the task and to read its options.

    Raises
    ------
    InputError
        If there is none for this problem, it does not support the task, or does not read an
        option of it; the message names those there are, and those that do.
    """
    problem = task.problem.name
    found = method_of(problem, method)
    found.check(method, task)
    for name, value in task.options.items():
        _check_option(problem, method, name, value)
    return found


def _check_option(problem: str, method: str, name: str, value: str) -> None:
    reads = METHODS[problem][method].reads
    if name not in reads:
        others = [other for other, it in METHODS[problem].items() if name in it.reads]
        who = f"only {' and '.join(others)} do" if others else f"no method for {problem} does"
        raise InputError(f"{name}: method {method} does not read it; {who}: leave it out")
    if reads[name] and value not in reads[name]:
        raise InputError(f"{name}: {quote(value)} is not one of {', '.join(reads[name])}")
    if name == "solver":
        from .core.other_solvers import check_solver  # with Pyomo, which takes a second to import

        check_solver(value)
