"""The methods, by problem and name."""

from __future__ import annotations

import re
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

#: Methods by problem and name.
METHODS: dict[str, dict[str, Method[Any]]] = {
    "throughput": throughput.METHODS,
    "mapping": mapping.METHODS,
    "pipeline": job.METHODS,
    "latency": latency.METHODS,
    "sharding": sharding.METHODS,
}


def method_of(problem: str, name: str) -> Method[Any]:
    """Return a method of a problem.

    InputError, which names those there are, if there is none of this name, or it takes nothing
    behind a colon.
    """
    return METHODS[problem][split_argument(problem, name)[0]]


def split_argument(problem: str, method: str) -> tuple[str, dict[str, str]]:
    """Return the name of a method, and the options behind its colon by name.

    ``NAME:VALUE`` gives the first option that the method reads, ``NAME:OPTION=VALUE`` another one,
    and further ones follow further colons. InputError as `method_of`, and if the method reads no
    options.

    Examples
    --------
    >>> split_argument("pipeline", "deepspeed-type:conv|linear")
    ('deepspeed-type', {'type': 'conv|linear'})
    >>> split_argument("throughput", "learned:policy=p.npz:fine-tune=2")
    ('learned', {'policy': 'p.npz', 'fine-tune': '2'})
    """
    name, colon, text = method.partition(":")
    known = METHODS[problem]
    if name not in known:
        raise InputError(f"method: no {name!r} for {problem}; use one of {', '.join(known)}")
    if not colon:
        return name, {}
    reads = known[name].reads
    if not reads:
        raise InputError(f"method: {name} takes nothing behind a colon; write {name}")
    names = "|".join(map(re.escape, reads))
    if not re.match(f"(?:{names})=", text):
        text = f"{next(iter(reads))}={text}"
    found: dict[str, str] = {}
    for part in re.split(f":(?=(?:{names})=)", text):
        option, _, value = part.partition("=")
        if option in found:
            raise InputError(f"method: {name} is given {option} twice; leave one of the two out")
        found[option] = value
    return name, found


def supported_method(task: Task[Problem], method: str) -> Method[Any]:
    """Return the method of this name, checked to support the task and the values of its options.

    InputError, which names what there is, if none has the name, it does not support the task, or an
    option cannot have its value.
    """
    found = method_of(task.problem.name, method)
    found.check(method, task)
    for name, value in task.options.items():
        allowed = found.reads[name]
        if allowed and value not in allowed:
            raise InputError(f"{name}: {quote(value)} is not one of {', '.join(allowed)}")
        if name == "solver":
            from .core.other_solvers import check_solver  # with Pyomo, which takes a second

            check_solver(value)
    return found
