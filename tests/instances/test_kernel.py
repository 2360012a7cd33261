"""Kernels: interpreted at first, then compiled, with the same results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from stagecut.instances.common import kernel as kernels
from stagecut.instances.common.kernel import (
    Kernel,
    NotCompiled,
    compiled_only_if,
    compiling,
    inner,
    kernel,
)


@inner
def weigh(table, i):
    """Sum up row i; `table` has shape (n, n)."""
    total = 0.0
    for j in range(len(table)):
        total += table[i, j]
    return total


@kernel
def descend(table, seen, hashes):
    """Count visits in `seen`, shape (n,), and hash them, shape (1,)."""
    best = np.inf
    for i in range(len(table)):
        seen[i] += 1
        hashes[0] = (hashes[0] ^ np.uint64(i)) * np.uint64(0x9E3779B97F4A7C15)
        best = min(best, weigh(table, i))
    return best, i, best < 1


def call(size: int = 20) -> tuple[object, list[int], int]:
    table = np.random.default_rng(3).random((size, size))
    seen, hashes = np.zeros(size, np.int64), np.ones(1, np.uint64)
    return descend(table, seen, hashes), seen.tolist(), int(hashes[0])


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_taken", 0)
    monkeypatch.setattr(descend, "iterations", 0)
    monkeypatch.setattr(descend, "ready", False)


def limit(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr(kernels, "ITERATIONS", turns)
    monkeypatch.setattr(kernels, "ITERATIONS_PER_BYTE", 0)


def test_what_has_little_to_do_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 10_000)
    call()
    assert not descend.ready
    assert descend.iterations == 20 + 20 * 20  # of both loops


def test_compiled_and_interpreted_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 10_000)
    interpreted = call()
    limit(monkeypatch, 0)
    assert call() == interpreted
    assert descend.ready
    assert not compiling()


@pytest.mark.parametrize("turns", [1, 30, 419])
def test_what_is_interrupted_begins_anew(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    limit(monkeypatch, 10_000)
    whole = call()
    descend.iterations = 0
    monkeypatch.setattr(kernels, "_taken", 0)
    limit(monkeypatch, turns)
    assert call() == whole
    assert descend.ready


def test_large_arguments_are_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_BYTES", 100)
    call()
    assert descend.ready


def test_numbers_are_those_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 10_000)
    (best, last, small), _, _ = call()  # type: ignore[misc]
    assert [type(value) for value in (best, last, small)] == [float, int, bool]


def test_compiling_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 0)

    class Compiler:
        seen: ClassVar[list[bool]] = []
        typeof_pyval = type

        def compile(self, _types: tuple[type, ...]) -> None:
            self.seen.append(compiling())

        def __call__(self, *_arguments: object) -> None:
            self.seen.append(compiling())

    told = Kernel(descend.function)
    told.__dict__ |= {"compiled": Compiler(), "_cached": False}
    told(np.ones((2, 2)), np.zeros(2, np.int64), np.ones(1, np.uint64))
    assert Compiler.seen == [True, False]


def test_what_must_not_be_compiled_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 10)
    monkeypatch.setitem(descend.__dict__, "_cached", False)
    seen, hashes = np.zeros(20, np.int64), np.ones(1, np.uint64)
    asked: list[str] = []
    with (
        compiled_only_if(lambda: bool(asked.append("outer"))),
        compiled_only_if(lambda: not asked.append("inner")),
        pytest.raises(NotCompiled, match="descend"),
    ):
        descend(np.ones((20, 20)), seen, hashes)
    assert asked == ["inner", "outer"]
    assert not seen.any()
    assert not descend.ready
    descend(np.ones((20, 20)), seen, hashes)
    assert descend.ready
    assert seen.all()


def test_what_is_compiled_already_is_never_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1)
    monkeypatch.setitem(descend.__dict__, "_cached", True)
    with compiled_only_if(lambda: False):
        call()
    assert descend.ready


def test_all_is_compiled_at_once_where_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 10_000)
    kernels.compile_at_once()
    call(5)
    assert descend.ready


CALLEE = """
from stagecut.instances.common.kernel import inner

FACTOR = {factor}

@inner
def weigh(x):
    return FACTOR * x
"""
CALLER = """
from callee_of_test import weigh
from stagecut.instances.common.kernel import kernel

@kernel
def total(n):
    s = 0
    for i in range(n):
        s += weigh(i)
    return s
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Kernel]:
    """Return a kernel from files, in a process that has not seen them, as it were."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # versions differ within one second
    limit(monkeypatch, 0)
    (tmp_path / "caller_of_test.py").write_text(CALLER)

    def imported(factor: int) -> Kernel:
        (tmp_path / "callee_of_test.py").write_text(CALLEE.format(factor=factor))
        for name in ("caller_of_test", "callee_of_test"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        total: Kernel = importlib.import_module("caller_of_test").total
        return total

    return imported


def test_what_was_compiled_with_another_version_of_a_part_is_not_used(
    modules: Callable[[int], Kernel],
) -> None:
    assert modules(1)(10) == 45
    assert modules(7)(10) == 7 * 45
    again = modules(1)
    assert again._cached
    assert again(10) == 45


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_what_is_damaged_is_compiled_again(modules: Callable[[int], Kernel], ending: str) -> None:
    total = modules(1)
    total(10)
    damaged = [file for file in total._files if file.suffix == f".{ending}"]
    for file in damaged:
        file.write_bytes(file.read_bytes()[:50])
    assert damaged
    again = modules(1)
    assert again(10) == 45
    assert all(len(file.read_bytes()) > 50 for file in again._files)


def test_where_nothing_can_be_written_it_is_compiled_and_not_kept(
    modules: Callable[[int], Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_unkept", set())
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    assert modules(1)(10) == 45
    assert kernels.unkept()


def test_a_full_disk_does_not_end_a_plan(
    modules: Callable[[int], Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernels, "_unkept", set())
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert modules(1)(10) == 45
    assert kernels.unkept()


def test_numbas_own_variable_has_all_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1_000_000)
    expected = call(60)
    limit(monkeypatch, 0)
    monkeypatch.setattr(kernels, "MOST_BYTES", 0)
    monkeypatch.setattr(kernels, "DISABLED", True)
    monkeypatch.setattr(Kernel, "_compile", None)
    assert call(60) == expected
