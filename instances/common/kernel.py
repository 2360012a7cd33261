"""Kernels: functions over arrays, interpreted for little work and compiled by numba for more.

Compiling takes one to two seconds for every hundred lines, once per machine. Interpreting takes
some hundred times as long as compiled code, and for a graph of a hundred nodes that is still less.
So the first iterations of their loops are interpreted, up to a small part of the time that
compiling takes. A call that is interrupted there begins anew, compiled, as all later ones of its
kernel. The results are the same either way. A search may forbid compiling for a block, such as
once it has reached the requested gap. Cached machine code is used for the same code, constants and
options only.

A kernel has no annotations, as numba infers types; its arguments are arrays, numbers, and named
tuples of them, and it changes nothing but those arrays. It may call other kernels.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property, update_wrapper
from operator import length_hint
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

#: Conditions for compiling kernels that are new on this machine, the innermost last.
_conditions: ContextVar[tuple[Callable[[], bool], ...]] = ContextVar("_conditions", default=())


class NotCompiled(Exception):
    """Error: a kernel has too many iterations to be interpreted, and may not be compiled now."""


#: Loop iterations that are interpreted before anything is compiled or loaded: some 0.2 s, half of
#: the time to import numba.
ITERATIONS = 200_000

#: Further ones of a kernel that is not cached on this machine, per byte of its code and that of its
#: callees: less than half of the time to compile it.
ITERATIONS_PER_BYTE = 250

#: Most interpreted iterations in a process: some 0.7 s, which a process that compiles nothing saves
#: by not importing numba.
MOST_ITERATIONS = 1_000_000

#: Bytes of arguments above which nothing is interpreted.
MOST_BYTES = 1 << 25

#: Options of kernels that allocate nothing: each use of a named tuple's field counts a reference
#: to its array, atomically. Without it, annealing takes a seventh of the time, and the label DP
#: compiles in four fifths.
UNCOUNTED = {"_nrt": False, "error_model": "numpy"}

#: Whether nothing is compiled, by numba's own environment variable: all is interpreted, slowly.
DISABLED = os.environ.get("NUMBA_DISABLE_JIT", "") not in ("", "0")

#: Global name of the iterator that interpreted functions advance once per loop iteration.
_COUNTER = "__iterations__"

#: Kernels that are being compiled now.
_compiling: list[Kernel] = []

#: Loop iterations interpreted so far, of all kernels.
_taken = 0

#: Kernels whose machine code is not cached, as no cache folder can be written.
_unkept: set[Kernel] = set()

#: Message to the user when compiled kernels cannot be kept.
NOT_KEPT = "what was compiled cannot be kept; set NUMBA_CACHE_DIR to a folder that can be written"


class Kernel:
    """A function that is interpreted at first, and compiled if its loops have many iterations.

    If `inner`, only kernels call it, and it is compiled without an entry point for Python, which
    for many arguments takes longer to compile than the function itself. Other options are numba's.
    """

    def __init__(
        self,
        function: FunctionType,
        *,
        inner: bool = False,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.inner = inner
        self.options = options
        self.iterations = 0
        self.ready = False

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, interpreted or compiled.

        Raises `NotCompiled` where `compiled_only_if` forbids compiling; then no array is changed.
        """
        if self.inner:
            return self.function(*arguments)
        if not self.ready:
            arrays = [array for array in _arrays(arguments) if array.flags.writeable]
            may = DISABLED or sum(array.nbytes for array in arrays) <= MOST_BYTES
            while may and (iterations := self._iterations_left()) > 0:
                kept = [array.copy() for array in arrays]
                try:
                    return self._interpret(arguments, iterations)
                except StopIteration:
                    for array, values in zip(arrays, kept, strict=True):
                        array[...] = values
            if ITERATIONS and not self._cached and not may_compile():
                raise NotCompiled(self.function.__name__)
            with self._announced(), _without_collector():
                self._compile(arguments)
            self.ready = True
        return self.compiled(*arguments)

    def _iterations_left(self) -> int:
        """Return the number of loop iterations that may still be interpreted."""
        if DISABLED:
            return sys.maxsize
        if _taken < ITERATIONS:
            return ITERATIONS - _taken
        if self._cached:
            return 0
        size = sum(len(part.function.__code__.co_code) for part in self._interpreted[1])
        return min(ITERATIONS_PER_BYTE * size - self.iterations, MOST_ITERATIONS - _taken)

    def _interpret(self, arguments: tuple[Any, ...], most: int) -> Any:
        """Call the function in Python; raise StopIteration after `most` loop iterations."""
        global _taken
        iterations = iter(range(most))
        function, spaces = self._interpreted
        for space in spaces.values():
            space[_COUNTER] = iterations
        try:
            with np.errstate(all="ignore"):
                result = function(*arguments)
        finally:
            self.iterations += most - length_hint(iterations)
            _taken += most - length_hint(iterations)
        return tuple(map(_plain, result)) if type(result) is tuple else _plain(result)

    @cached_property
    def _interpreted(self) -> tuple[Callable[..., Any], dict[Kernel, dict[str, Any]]]:
        """The function in Python with counted loop iterations, and the globals it runs in."""
        spaces: dict[Kernel, dict[str, Any]] = {}
        return _counted(self, spaces), spaces

    @cached_property
    def compiled(self) -> Any:
        """The numba dispatcher of the function."""
        njit = load_numba().njit
        space = dict(self.function.__globals__)
        copy = FunctionType(self.function.__code__, space, self.function.__name__)
        copy.__qualname__ = self._cache_name
        wrapped = {"no_cpython_wrapper": self.inner, "no_cfunc_wrapper": True}
        compiler = njit(nogil=True, **wrapped, **self.options)(copy)
        if self not in _unkept:
            try:
                compiler.enable_caching()
            except RuntimeError:  # neither our folders nor the user's can be written
                _unkept.add(self)
        self.compiled = compiler
        for name, other in _called(self):
            space[name] = other.compiled
        return self.compiled

    def _compile(self, arguments: tuple[Any, ...]) -> None:
        """Compile for the types of these arguments, or load the cached machine code.

        numba may raise any error if it cannot load a file (damaged, of another version) or write
        one (no room): cached files are removed; if that does not help, none are used. An error
        without cached files is the kernel's own, unless it is one of the file system.
        """
        parts = set[Kernel](_parts(self))
        kept = any(part._cached for part in parts)
        for remedy in (_remove_files, _unkept.update):
            try:
                self.compiled.compile(tuple(map(self.compiled.typeof_pyval, arguments)))
                return
            except Exception as error:
                if not kept and not isinstance(error, OSError):
                    raise
                remedy(parts)
                for part in parts:
                    part.__dict__.pop("compiled", None)
        self.compiled.compile(tuple(map(self.compiled.typeof_pyval, arguments)))

    @cached_property
    def _cache_name(self) -> str:
        """Name in numba's cache, which changes with the code of this kernel and its callees.

        numba only checks the file of a function itself, and would reuse code that was compiled
        with an older version of a callee.
        """
        digest = hashlib.sha256()
        for part in _parts(self):
            for item in ingredients(part.function, part.options):
                digest.update(repr(item).encode())
        return f"{self.function.__qualname__}_{digest.hexdigest()[:16]}"

    @property
    def _files(self) -> list[Path]:
        """Paths of numba's cache: an index, and a file for each signature."""
        if self in _unkept or self.compiled.stats.cache_path is None:
            return []
        code = self.function.__code__
        name = f"{Path(code.co_filename).stem}.{self._cache_name}-{code.co_firstlineno}.*.nb[ic]"
        return list(Path(self.compiled.stats.cache_path).glob(name))

    @cached_property
    def _cached(self) -> bool:
        """Whether machine code is cached, perhaps for other signatures."""
        return bool(self._files)

    @contextmanager
    def _announced(self) -> Iterator[None]:
        """Make `compiling` true while the body runs, unless cached machine code is loaded."""
        if self._cached:
            yield
            return
        _compiling.append(self)
        try:
            yield
        finally:
            _compiling.remove(self)


def compiling() -> bool:
    """Return whether a kernel is being compiled now, as happens once per machine."""
    return bool(_compiling)


def unkept() -> bool:
    """Return whether compiled code could not be cached, so that later processes compile again."""
    return bool(_unkept)


def load_numba() -> Any:
    """Return numba, configured by environment variables alone.

    By default it also reads a file in the working directory, which can name a folder of machine
    code.
    """
    import numba

    if numba.core.config._config_fname:
        numba.core.config._config_fname = ""
        numba.core.config.reload_config()
    return numba


def compile_at_once() -> None:
    """Interpret no kernel from now on in this process, but compile each at its first call."""
    global ITERATIONS, ITERATIONS_PER_BYTE
    ITERATIONS = ITERATIONS_PER_BYTE = 0


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable garbage collection in the body: it takes a quarter of the time of compiling."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def kernel(function: Callable[..., Any]) -> Kernel:
    """Make a function a kernel."""
    assert isinstance(function, FunctionType)
    return Kernel(function)


def inner(function: Callable[..., Any]) -> Kernel:
    """Make a function a kernel that only kernels call."""
    assert isinstance(function, FunctionType)
    return Kernel(function, inner=True)


def uncounted(function: Callable[..., Any]) -> Kernel:
    """Make a function a kernel that only kernels call, without reference counting or allocation."""
    assert isinstance(function, FunctionType)
    return Kernel(function, inner=True, options=UNCOUNTED)


def _called(caller: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Yield name and kernel of each global of a kernel that is a kernel."""
    for name in caller.function.__code__.co_names:
        value = caller.function.__globals__.get(name)
        if isinstance(value, Kernel):
            yield name, value


def _parts(kernel: Kernel) -> dict[Kernel, None]:
    """Return a kernel and its callees, also indirect ones, in the order of discovery."""
    parts = {kernel: None}
    todo = [kernel]
    while todo:
        met = {other: None for _, other in _called(todo.pop()) if other not in parts}
        parts |= met
        todo += met
    return parts


def _remove_files(kernels: Iterable[Kernel]) -> None:
    """Remove numba's cache files of kernels, as far as permissions allow."""
    for kernel in kernels:
        for file in kernel._files:
            with suppress(OSError):
                file.unlink(missing_ok=True)


def _counted(kernel: Kernel, spaces: dict[Kernel, dict[str, Any]]) -> Callable[..., Any]:
    """Return the function with counted loop iterations; add its globals to `spaces`."""
    function = kernel.function
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse("".join(lines))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.name, definition.decorator_list = function.__name__, []
    for node in ast.walk(definition):
        if isinstance(node, ast.For | ast.While):
            (take,) = ast.parse(f"next({_COUNTER})").body
            node.body.insert(0, ast.copy_location(take, node.body[0]))
    ast.fix_missing_locations(ast.increment_lineno(tree, first - 1))
    space = spaces[kernel] = dict(function.__globals__)
    exec(compile(tree, function.__code__.co_filename, "exec"), space)
    counted: Callable[..., Any] = space[function.__name__]
    for name, other in _called(kernel):
        seen = spaces.get(other)
        space[name] = seen[other.function.__name__] if seen else _counted(other, spaces)
    return counted


def _arrays(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Return the arrays among arguments."""
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            yield argument
        elif isinstance(argument, tuple):
            yield from _arrays(argument)


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number, as numba does."""
    return value.item() if isinstance(value, np.generic) else value


def may_compile() -> bool:
    """Return whether all conditions hold; the innermost are evaluated first, up to a failure."""
    return all(may() for may in reversed(_conditions.get()))


@contextmanager
def compiled_only_if(may: Callable[[], bool]) -> Iterator[None]:
    """Raise `NotCompiled` from kernels that need compiling while `may` returns False.

    It applies to this thread; code that is cached on this machine is used nevertheless.
    """
    token = _conditions.set((*_conditions.get(), may))
    try:
        yield
    finally:
        _conditions.reset(token)


@contextmanager
def compiled_to_come_near(near: Callable[[], bool]) -> Iterator[None]:
    """Allow compiling in the body until `near` begins to hold; the next new kernel then ends it."""
    waited = declined = False

    def worth_it() -> bool:
        nonlocal waited, declined
        there = near()
        declined = waited and there
        waited = waited or not there
        return not declined

    try:
        with compiled_only_if(worth_it):
            yield
    except NotCompiled:
        if not declined:
            raise


def ingredients(function: FunctionType, options: Mapping[str, Any]) -> Iterator[object]:
    """Yield code, constants and compiler options, on which the results of a function depend."""
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
