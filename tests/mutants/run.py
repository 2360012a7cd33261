"""Deliberate faults, one at a time: does `make test` see them?

    python tests/mutants/run.py [WORD …]

Each mutant of `mutants.toml` is put into a copy of the tree, and the tests that it names are run,
with the cases that `make test` selects. A line says what became of it:

    killed    a test fails that passes without the fault
    survived  all tests pass
    stale     the text is not in the file, or several times: mend the list
    broken    a test fails without the fault too

Words choose the mutants whose file, tests or reason they are in. The exit code is 1 if one is not
killed. `--everything` runs slow tests too, and all random cases.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")

#: Beside what git does not know, what no test of the list reads.
LEFT_OUT = (".git", ".venv", ".dev", "__pycache__", "build", "notebooks", "*.egg-info", ".*_cache")

#: A mutant may loop for ever: tests that take longer have seen it.
TIMEOUT_S = 900.0


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


def run_tests(tree: Path, tests: list[str], *options: str) -> tuple[bool, str]:
    """Return whether tests pass in a tree, and the first one that does not."""
    given = os.environ.get("STAGECUT_BENCHMARKS", ROOT.parent / "shared" / "benchmarks")
    env = {
        **os.environ,
        "PYTHONPATH": str(tree / ".dev"),
        "NUMBA_CACHE_DIR": str(tree / "build" / "compiled"),
        "STAGECUT_BENCHMARKS": str(given),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider",
               "-rfE", *options, *tests]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return False, "it takes too long"
    if done.returncode not in (0, 1, 2):
        raise SystemExit(done.stdout + done.stderr)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - |$)", done.stdout, re.MULTILINE)
    return done.returncode == 0, failed[1] if failed else ""


def fate(tree: Path, mutant: Mutant, *options: str) -> tuple[str, str]:
    """Return what becomes of a mutant, and the test that saw it."""
    path = tree / mutant.file
    right = path.read_text() if path.exists() else ""
    if right.count(mutant.old) != 1:
        return "stale", ""
    tests = [f"tests/{name}" for name in mutant.tests.split()]
    path.write_text(right.replace(mutant.old, mutant.new))
    try:
        passed, seen = run_tests(tree, tests, *options)
    finally:
        path.write_text(right)
    if passed:
        return "survived", ""
    if "::" in seen and not run_tests(tree, [seen], *options)[0]:
        return "broken", seen
    return "killed", seen


def main() -> int:
    """Run the mutants chosen, and print what becomes of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--everything", action="store_true")
    asked = parser.parse_args()
    options = ["--everything"] if asked.everything else []
    chosen = [
        one
        for one in mutants()
        if not asked.words
        or any(word in f"{one.file} {one.tests} {one.why}" for word in asked.words)
    ]
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "stagecut"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        (tree / ".dev").mkdir()
        (tree / ".dev" / "stagecut").symlink_to("..")
        for mutant in chosen:
            before = time.monotonic()
            word, seen = fate(tree, mutant, *options)
            found[word] = found.get(word, 0) + 1
            took = time.monotonic() - before
            print(f"{word:9} {mutant.file}: {mutant.why}  [{took:.0f} s] {seen}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(found.items())))
    return int(set(found) != {"killed"})


if __name__ == "__main__":
    sys.exit(main())
