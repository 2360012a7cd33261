"""Kernels: functions over arrays, interpreted for little work and compiled by numba for more.

Compiling takes one to two seconds for every hundred lines, once per machine. Interpreting takes
some hundred times as long as compiled code, and for a graph of a hundred nodes that is still less.
So the first iterations of their loops are interpreted, up to a small part of the time that
compiling takes. A call that is interrupted there begins anew, compiled, as all later ones of its
kernel. The results are the same either way. A search may forbid compiling for a block, such as
beyond the gap asked for. Cached machine code counts for the same code, constants and options only.

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
    """A kernel has too much to do to be interpreted, and is not to be compiled now."""


#: Turns of loops that are interpreted before anything is compiled or loaded: some 0.2 s, half of
#: what importing numba takes.
TURNS = 200_000

#: The same for a kernel that has not been compiled yet on this machine, once those are used up, for
#: each byte of its code and of what it calls: less than half of the time that compiling it takes.
TURNS_PER_BYTE = 250

#: The same for all kernels together, in one process: some 0.7 s, which a process that compiles
#: nothing saves by not importing numba.
MOST_TURNS = 1_000_000

#: Bytes of arguments above which nothing is interpreted.
MOST_BYTES = 1 << 25

#: Options of kernels that allocate nothing: each use of a named tuple's field counts a reference
#: to its array, atomically. Without it, annealing takes a seventh of the time, and the label DP
#: compiles in four fifths.
UNCOUNTED = {"_nrt": False, "error_model": "numpy"}

#: Whether nothing is compiled, by numba's own environment variable: all is interpreted, slowly.
DISABLED = os.environ.get("NUMBA_DISABLE_JIT", "") not in ("", "0")

#: Name by which interpreted functions know the turns that they have left.
_TURNS = "__turns__"

#: Kernels that are being compiled now.
_compiling: list[Kernel] = []

#: Turns taken so far, by all kernels.
_taken = 0

#: Kernels that were compiled for this process alone, as nothing can be written where numba would
#: keep them.
_unkept: set[Kernel] = set()

#: Message to the user when compiled kernels cannot be kept.
NOT_KEPT = "what was compiled cannot be kept; set NUMBA_CACHE_DIR to a folder that can be written"


class Kernel:
    """A function that is interpreted at first, and compiled if it has much to do.

    If `inner`, kernels alone call it. It then has no way in from Python once it is compiled: for
    many arguments that takes longer to compile than the function itself. Other options are numba's.
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
        self.turns = 0
        self.ready = False

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, interpreted or compiled.

        `NotCompiled` is raised where `compiled_only_if` has it so; no array is changed then.
        """
        if self.inner:
            return self.function(*arguments)
        if not self.ready:
            arrays = [array for array in _arrays(arguments) if array.flags.writeable]
            may = DISABLED or sum(array.nbytes for array in arrays) <= MOST_BYTES
            while may and (turns := self._turns_left()) > 0:
                kept = [array.copy() for array in arrays]
                try:
                    return self._interpret(arguments, turns)
                except StopIteration:
                    for array, values in zip(arrays, kept, strict=True):
                        array[...] = values
            if TURNS and not self._cached and not may_compile():
                raise NotCompiled(self.function.__name__)
            with self._announced(), _without_collector():
                self._compile(arguments)
            self.ready = True
        return self.compiled(*arguments)

    def _turns_left(self) -> int:
        """Return the number of loop iterations that may still be interpreted."""
        if DISABLED:
            return sys.maxsize
        if _taken < TURNS:
            return TURNS - _taken
        if self._cached:
            return 0
        size = sum(len(part.function.__code__.co_code) for part in self._interpreted[1])
        return min(TURNS_PER_BYTE * size - self.turns, MOST_TURNS - _taken)

    def _interpret(self, arguments: tuple[Any, ...], most: int) -> Any:
        """Call the function as Python; raise StopIteration after that many loop iterations."""
        global _taken
        turns = iter(range(most))
        function, spaces = self._interpreted
        for space in spaces.values():
            space[_TURNS] = turns
        try:
            with np.errstate(all="ignore"):
                result = function(*arguments)
        finally:
            self.turns += most - length_hint(turns)
            _taken += most - length_hint(turns)
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
        copy.__qualname__ = self._kept_as
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

        numba raises any error for what it cannot load (damaged, of other versions) or keep (no
        room): files of before are removed; if that does not help, none are used. An error with no
        files of before is the kernel's own, unless it is one of the file system.
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
    def _kept_as(self) -> str:
        """Name in numba's cache; it changes with the code of this kernel and of all that it calls.

        numba looks at the file of a function alone, and would go on using what was compiled with
        an older version of another one that it calls.
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
        name = f"{Path(code.co_filename).stem}.{self._kept_as}-{code.co_firstlineno}.*.nb[ic]"
        return list(Path(self.compiled.stats.cache_path).glob(name))

    @cached_property
    def _cached(self) -> bool:
        """Whether machine code is cached, perhaps for other signatures."""
        return bool(self._files)

    @contextmanager
    def _announced(self) -> Iterator[None]:
        """Let `compiling` be true while the body runs, unless the kernel is but loaded."""
        if self._cached:
            yield
            return
        _compiling.append(self)
        try:
            yield
        finally:
            _compiling.remove(self)


def compiling() -> bool:
    """Return whether a kernel is being compiled, which happens once per machine."""
    return bool(_compiling)


def unkept() -> bool:
    """Return whether a kernel was compiled that later processes will have to compile again."""
    return bool(_unkept)


def load_numba() -> Any:
    """Return numba, set by the environment alone.

    Of itself it also follows a file in the working directory, even to a folder of compiled code.
    """
    import numba

    if numba.core.config._config_fname:
        numba.core.config._config_fname = ""
        numba.core.config.reload_config()
    return numba


def compile_at_once() -> None:
    """Interpret nothing from now on in this process, so that all that is called gets compiled."""
    global TURNS, TURNS_PER_BYTE
    TURNS = TURNS_PER_BYTE = 0


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python's collector of cycles out of compiling: it takes a quarter of the time there."""
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
    """Make a function a kernel that kernels alone call."""
    assert isinstance(function, FunctionType)
    return Kernel(function, inner=True)


def uncounted(function: Callable[..., Any]) -> Kernel:
    """Make a function a kernel that kernels alone call, and that allocates no arrays."""
    assert isinstance(function, FunctionType)
    return Kernel(function, inner=True, options=UNCOUNTED)


def _called(caller: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Return the kernels that a kernel calls, by the names that it has for them."""
    for name in caller.function.__code__.co_names:
        value = caller.function.__globals__.get(name)
        if isinstance(value, Kernel):
            yield name, value


def _parts(kernel: Kernel) -> dict[Kernel, None]:
    """Return a kernel and all that it calls, in the order in which they are met."""
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
    """Return the function with a turn taken in each turn of its loops; note its globals."""
    function = kernel.function
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse("".join(lines))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.name, definition.decorator_list = function.__name__, []
    for node in ast.walk(definition):
        if isinstance(node, ast.For | ast.While):
            (take,) = ast.parse(f"next({_TURNS})").body
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
    """Return a number of NumPy's as one of Python's, as numba does."""
    return value.item() if isinstance(value, np.generic) else value


def may_compile() -> bool:
    """Return whether all conditions hold; those behind one that does not are not asked."""
    return all(may() for may in reversed(_conditions.get()))


@contextmanager
def compiled_only_if(may: Callable[[], bool]) -> Iterator[None]:
    """Raise `NotCompiled` from kernels that need compiling while `may` returns False.

    It counts for this thread; what was compiled on this machine before is used all the same.
    """
    token = _conditions.set((*_conditions.get(), may))
    try:
        yield
    finally:
        _conditions.reset(token)


@contextmanager
def compiled_to_come_near(near: Callable[[], bool]) -> Iterator[None]:
    """Compile in the body until `near`; end it if compiling goes on beyond."""
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
    """Yield the code, constants and compiler's options that determine a function's results."""
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
