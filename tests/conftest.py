"""Shared by all tests: which of them `make test` runs, where the published inputs are, limits.

`make test` runs a part of the blocks of random cases, and the pages that have changed; with
`--everything`, as in `make test-all`, all tests run, slow ones too, and random cases that nobody
has seen before.
"""

from __future__ import annotations

import fcntl
import gc
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Workers fill the processors: more threads would only wait there, half of a test's time.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import pytest
from project import ROOT, MadeOnce

from stagecut import Limits
from stagecut.commands.common import clock
from stagecut.instances.common.kernel import Kernel
from stagecut.solvers import DEFAULT_LIMITS
from stagecut.solvers.core import portfolio

BENCHMARKS = Path(
    os.environ.get("STAGECUT_BENCHMARKS", ROOT.parent / "shared" / "benchmarks")
).resolve()

#: Parameters that number random cases: single ones, or blocks of many that take up to seconds.
SINGLE, BLOCKS = ("seed",), ("chunk", "block")

#: Of blocks one in so many is run, and of single cases the first so many.
ONE_IN = 8
MOST_SINGLE = 30

#: Examples of each property with `--everything`, if the environment names no other number.
EXAMPLES = 200

#: Files of tests that build the wheel: no worker should be left alone with one.
LONGEST = ("test_structure.py",)

#: Where the branch is that others leave, the last of those that are there.
MAIN = ("refs/heads/main", "refs/remotes/origin/main")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--everything", action="store_true", help="slow tests too, all random cases and new ones"
    )
    parser.addoption(
        "--new-cases", type=int, help="seed of the new random cases, to repeat an earlier run"
    )


@pytest.hookimpl(tryfirst=True)  # before the workers of xdist are told the options
def pytest_configure(config: pytest.Config) -> None:
    if config.option.everything:
        config.option.markexpr = ""
        os.environ.setdefault("STAGECUT_EXAMPLES", str(EXAMPLES))
        if config.option.new_cases is None:
            config.option.new_cases = random.SystemRandom().randrange(10**6)


def pytest_report_header(config: pytest.Config) -> str:
    if config.option.everything:
        return f"everything, new random cases by --new-cases {config.option.new_cases}"
    return f"one in {ONE_IN} blocks of random cases, pages that have changed; all with --everything"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep Python's collector of cycles off what is imported and collected, and seldom at work."""
    gc.disable()
    try:
        with one_before_the_others(session.config):
            return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)  # by default it takes a twentieth of all time
        gc.enable()


@contextmanager
def one_before_the_others(config: pytest.Config) -> Iterator[None]:
    """Let one worker of xdist collect first in a new clone, or each would compile all modules."""
    compiled = any((ROOT / "tests" / "__pycache__").glob("test_structure.*"))
    if compiled or sys.dont_write_bytecode or "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    with (Path(config.option.basetemp).parent / "collected").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = metafunc.definition.own_markers
    for place, mark in enumerate(marks):
        if mark.name == "parametrize" and mark.args[0] in (*SINGLE, *BLOCKS):
            name, values, *rest = mark.args
            if isinstance(values, range):
                chosen = case_numbers(metafunc.config, name, values, metafunc.definition.nodeid)
                marks[place] = pytest.mark.parametrize(name, chosen, *rest, **mark.kwargs).mark


def case_numbers(config: pytest.Config, name: str, values: range, test: str) -> Sequence[int]:
    """Return the random cases to run of a test; with `--everything` all, and some new ones."""
    if config.option.everything:
        drawn = random.Random(f"{config.option.new_cases} {test} {name}")
        new = drawn.sample(range(10**4, 10**6), max(1, len(values) // 10))
        return [*values, *new]
    return values[: MOST_SINGLE if name in SINGLE else max(1, len(values) // ONE_IN)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of pages that have not changed; begin with the longest tests."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    pages = {item: mark.args for item in items for mark in item.iter_markers("page")}
    if config.option.everything or not pages:
        return
    changed = changed_files()
    if changed is None:
        return
    left_out = [
        item
        for item, paths in pages.items()
        if not any(
            name == path or name.startswith(f"{path}/") for name in changed for path in paths
        )
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def changed_files() -> set[str] | None:
    """Return the files changed since the branch left `main`, those not committed included.

    On `main` itself: since the first parent of the last commit. None where git cannot tell.
    """
    try:
        (head,) = _git("rev-parse", "HEAD")
        main = _git("for-each-ref", "--format=%(objectname)", *MAIN)[-1:]
        base = _git("merge-base", "HEAD", *main)[:1] if main else [head]
        since = base if base != [head] else ["HEAD^"]
        changed = _git("diff", "--name-only", *since)
        return {*changed, *_git("ls-files", "--others", "--exclude-standard")}
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="session")
def benchmarks() -> Path:
    """Folder of the published inputs; skipped without it, except in CI, where it must be."""
    if not BENCHMARKS.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{BENCHMARKS} is missing: CI needs the published inputs")
        pytest.skip(f"published inputs not found at {BENCHMARKS}; set STAGECUT_BENCHMARKS")
    return BENCHMARKS


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """Make a folder that all workers of xdist use: the first one makes it, others wait for it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        with (shared / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not (made := shared / name).exists():
                make(half := Path(tempfile.mkdtemp(dir=shared)))
                half.rename(made)
        return made

    return folder


@pytest.fixture(scope="session", autouse=True)
def default_limits() -> Iterator[dict[str, Limits]]:
    """Let tests search to the end where they give no limits; yields the limits of users."""
    of_users = dict(DEFAULT_LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        for problem in of_users:
            patch.setitem(DEFAULT_LIMITS, problem, Limits())
        yield of_users


@pytest.fixture(scope="session", autouse=True)
def _one_process() -> Iterator[None]:
    """Let tests search in one process, however long they take; those of workers say otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portfolio, "START_AFTER_S", math.inf)
        yield


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let a worker of xdist wait for another one that compiles the same kernel, and load it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    folder, compile_here = tmp_path_factory.getbasetemp().parent, Kernel._compile

    def compile_alone(kernel: Kernel, arguments: tuple[Any, ...]) -> None:
        with (folder / kernel._cache_name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            compile_here(kernel, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "_compile", compile_alone)
        yield


@pytest.fixture(autouse=True)
def _time_begins_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands count their time from the start of the process, which is here that of all tests."""
    monkeypatch.setattr(clock, "STARTED", time.monotonic())
