"""The pictures of the gallery: made by the commands that stand above them on the page.

They are kept in `build/gallery` until the page or the code changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack, redirect_stdout
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gallery.md"
#: What the commands find beside the page.
GIVEN = ROOT / "docs" / "recorded"
MADE = ROOT / "build" / "gallery"
#: What commands import, once for all of them: that takes most of their time.
LOADED = ("stagecut.cli", "matplotlib.pyplot", "pandas", "networkx", "scipy.sparse.csgraph")
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def made() -> dict[str, bytes]:
    """Return the files that the page shows, by name; they are made where they are not known."""
    text = PAGE.read_text(encoding="utf-8")
    names = sorted(set(re.findall(r"\]\(gallery/([\w.]+)\)", text)))
    names += re.findall(r"^<!-- ([\w.]+) -->$", text, re.MULTILINE)
    stamp = MADE / f"{_state(text)}.stamp"
    if not stamp.exists() or not all((MADE / name).exists() for name in names):
        MADE.mkdir(parents=True, exist_ok=True)
        for old in MADE.glob("*.stamp"):
            old.unlink()
        _run(text)
        stamp.touch()
    return {name: (MADE / name).read_bytes() for name in names}


def with_outputs(text: str) -> str:
    """Return the page with what its commands printed where it says so."""
    return re.sub(
        r"^<!-- ([\w.]+) -->$",
        lambda found: f"```\n{(MADE / found[1]).read_text(encoding='utf-8').strip()}\n```",
        text,
        flags=re.MULTILINE,
    )


def _run(text: str) -> None:
    """Run the blocks of the page in one folder, by a process that imports once for all of them."""
    given = MADE / "recorded"
    if not given.is_symlink():
        given.symlink_to(GIVEN)
    env = {
        **os.environ, "PYTHONPATH": str(ROOT / ".dev"), "COLUMNS": "84",
        "SOURCE_DATE_EPOCH": "0", "MPLBACKEND": "agg",  # what says the same is the same file
    }  # fmt: skip
    command = [sys.executable, __file__]
    done = subprocess.run(command, cwd=MADE, env=env, input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"gallery: {done.stderr}")


def _run_here(text: str) -> None:
    """Run the blocks of the page, first to last, each command in a copy of this process."""
    for package in LOADED:
        import_module(package)
    context = get_context("fork")
    for language, block in BLOCK.findall(text):
        commands = block.replace("\\\n", "").splitlines() if language == "sh" else [block]
        for command in commands:
            run, given = (_run_command, ()) if language == "sh" else (exec, ({},))
            process = context.Process(target=run, args=(command, *given))
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(command)


def _run_command(command: str) -> None:
    """Run a line of a shell: a command of ours, and the file to which its output goes."""
    from stagecut import cli
    from stagecut.commands.common import clock

    clock.STARTED = time.monotonic()  # from where its time counts
    (program, *words), *file = map(shlex.split, command.split(" > "))
    assert program == "stagecut", command
    with ExitStack() as opened:
        for (name,) in file:
            opened.enter_context(redirect_stdout(opened.enter_context(open(name, "w"))))
        code = cli.run_command(words)
    sys.exit(code)


def _state(text: str) -> str:
    """Return a name for the page and the code that it shows."""
    digest = hashlib.sha256(text.encode())
    rooms = ("api", "commands", "formulations", "instances", "runtime", "solvers")
    sources = [p for room in rooms for p in (ROOT / room).rglob("*.py")]
    for path in sorted([*sources, *(ROOT / "runtime").rglob("*.html"), *GIVEN.glob("*.json")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    _run_here(sys.stdin.read())
