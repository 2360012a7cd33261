"""What a compiled function contains: what was compiled from anything else is not taken for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any


def ingredients(function: FunctionType, options: Mapping[str, Any]) -> Iterator[object]:
    """Return what a function's results depend on, apart from its arguments and what it calls.

    Parameters
    ----------
    options
        That it is compiled with.
    """
    yield sorted(options.items())
    space, codes = function.__globals__, [function.__code__]
    while codes:
        code = codes.pop()
        yield code.co_code, code.co_varnames, code.co_names
        codes += [item for item in code.co_consts if isinstance(item, CodeType)]
        yield [item for item in code.co_consts if not isinstance(item, CodeType)]
        for name in code.co_names:
            value = space.get(name)
            if isinstance(value, ModuleType):  # its constants, taken as attributes
                yield from ((n, vars(value)[n]) for n in code.co_names if _constant(value, n))
            elif isinstance(value, type):
                yield name, getattr(value, "_fields", ())
            elif not callable(value):
                yield name, value


def _constant(module: ModuleType, name: str) -> bool:
    return isinstance(vars(module).get(name), int | float | tuple)
