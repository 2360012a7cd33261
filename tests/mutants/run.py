"""Deliberate faults, one at a time: does `make test` see them?

    python tests/mutants/run.py [--everything] [--keep] [WORD …]

Each mutant of `mutants.toml` is put into a copy of the tree, and the tests that it names are run,
with the cases that `make test` selects. A line says what became of it:

    make test      a test fails that passes without the fault
    make test-all  one fails among slow tests and all random cases, which `--everything` runs for
                   mutants that survive
    none           all tests pass
    stale          the text is not in the file, or several times: mend the list
    broken         a test fails without the fault too

Words choose the mutants whose file, tests or reason they are in. `--keep` puts their lines into
`benchmarks/results/mutants.csv`. The exit code is 1 if `make test` does not kill one.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import results  # noqa: E402

LIST = Path(__file__).with_name("mutants.toml")

#: Imported before the first mutant: each takes seconds, and none imports what is tested.
PACKAGES = ("numba", "scipy.optimize", "pandas", "networkx", "highspy", "pyomo.environ")
PACKAGES += ("matplotlib.pyplot", "typer", "rich.console")

#: Beside what git does not know, what no test of the list reads.
LEFT_OUT = (".git", ".venv", ".dev", "__pycache__", "build", "notebooks", "*.egg-info", ".*_cache")

#: A mutant may loop for ever: tests that take longer have seen it.
TIMEOUT_S = 900.0

#: Request of Linux's `prctl` for a signal at the death of the parent.
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Parameters
    ----------
    file
        Where it is, from the root of the repository.
    old, new
        The text that is replaced, which is in the file once, and what replaces it.
    tests
        Test files or test ids that should fail, from the folder `tests`.
    why
        What is wrong then.
    """

    file: str
    old: str
    new: str
    tests: str
    why: str

    def __post_init__(self) -> None:
        assert all(isinstance(getattr(self, field.name), str) for field in fields(self)), self


def mutants() -> list[Mutant]:
    """Return all mutants of the list."""
    return [Mutant(**one) for one in tomllib.loads(LIST.read_text())["mutant"]]


def copy_of_the_tree(tree: Path) -> Path:
    """Return a copy of what git knows of the tree, in which mutants are put."""
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    (tree / ".dev").mkdir()
    (tree / ".dev" / "stagecut").symlink_to("..")
    return tree


def prepare(tree: Path) -> None:
    """Let this process, and those forked from it, find the tree, and packages loaded."""
    given = os.environ.get("STAGECUT_BENCHMARKS", ROOT.parent / "shared" / "benchmarks")
    os.environ["PYTHONPATH"] = str(tree / ".dev")
    os.environ["NUMBA_CACHE_DIR"] = str(tree / "build" / "compiled")
    os.environ["STAGECUT_BENCHMARKS"] = str(Path(given).resolve())
    sys.path.insert(0, str(tree / ".dev"))
    for name in PACKAGES:
        import_module(name)


def failing(tree: Path, tests: Sequence[str], *options: str) -> list[str]:
    """Return the tests, or files of tests, that fail in a tree.

    They run in a fork of this process, which has imported what takes seconds to import.
    """
    words = ["-q", "--no-header", "-p", "no:cacheprovider", "-rfE", *options, *tests]
    with tempfile.TemporaryFile("w+") as output:
        if not (child := os.fork()):
            _run_here(tree, words, output.fileno())
        until, status = time.monotonic() + TIMEOUT_S, None
        try:
            while status is None and time.monotonic() < until:
                done, waited = os.waitpid(child, os.WNOHANG)
                status = os.waitstatus_to_exitcode(waited) if done else None
                time.sleep(0.05)
        finally:
            if status is None:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
        if status is None:
            return ["it takes too long"]
        output.seek(0)
        said = output.read()
    if status not in (0, 1, 2):
        raise SystemExit(said)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - |$)", said, re.MULTILINE)
    if bool(status) != bool(failed):
        raise SystemExit(said)
    return failed


def _run_here(tree: Path, words: list[str], output: int) -> NoReturn:
    """Run pytest in this process, which ends with its exit code."""
    code = 3
    try:
        os.setpgid(0, 0)
        _end_with_parent()
        os.chdir(tree)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = int(pytest.main(words))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with_parent() -> None:
    """Let Linux kill this process with its parent, even if that is killed; undo `stop`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def fate(tree: Path, mutant: Mutant, *options: str) -> tuple[str, str]:
    """Return what kills a mutant, as above, and the first test that fails."""
    path = tree / mutant.file
    right = path.read_text() if path.exists() else ""
    if right.count(mutant.old) != 1:
        return "stale", ""
    tests = [f"tests/{name}" for name in mutant.tests.split()]
    stamp = path.stat().st_mtime_ns
    path.write_text(right.replace(mutant.old, mutant.new))
    try:
        seen = failing(tree, tests, "-x", *options)
    finally:
        path.write_text(right)
        os.utime(path, ns=(stamp, stamp))  # what was compiled of it counts again
    if not seen:
        return "none", ""
    return "make test-all" if options else "make test", seen[0]


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def stop(number: int, _frame: object) -> NoReturn:
    """End this process as on Ctrl-C, so that it ends the tests that run."""
    raise SystemExit(128 + number)


def main() -> int:
    """Run the mutants chosen, and print what becomes of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--everything", action="store_true")
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    chosen = [
        one
        for one in mutants()
        if not asked.words
        or any(word in f"{one.file} {one.tests} {one.why}" for word in asked.words)
    ]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_the_tree(Path(folder) / "stagecut")
        prepare(tree)
        for mutant in chosen:
            before = cpu_seconds()
            by, seen = fate(tree, mutant)
            if by == "none" and asked.everything:
                by, seen = fate(tree, mutant, "--everything")
            took = f"{cpu_seconds() - before:.0f}"
            print(f"{by:13} {mutant.file}: {mutant.why}  [{took} CPU s] {seen}", flush=True)
            rows.append(
                {"fault": mutant.why, "file": mutant.file, "killed by": by, "first test": seen,
                 "CPU s": took}
            )  # fmt: skip
        without = {row["first test"] for row in rows if "::" in row["first test"]}
        broken = failing(tree, sorted(without), "-m", "") if without else []
    for row in rows:
        if row["first test"] in broken:
            row["killed by"] = "broken"
            print(f"broken: {row['first test']} fails without a fault")
    if asked.keep:
        results.write("mutants", rows, "", add=bool(asked.words))
    counts = Counter(row["killed by"] for row in rows)
    print(", ".join(f"{by}: {count}" for by, count in sorted(counts.items())))
    return int(set(counts) != {"make test"})


if __name__ == "__main__":
    sys.exit(main())
