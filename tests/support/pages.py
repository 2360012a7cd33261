"""The code blocks of a page, and how they are run: all of a page in one folder, first to last.

A comment before a block says what else there is to know of it:

    <!-- not run: WHY -->     it is not executed
    <!-- slow: WHY -->        it is executed by `make test-all` only
    <!-- exits with 3 -->     its last command does
    <!-- file: NAME -->       it is a file, not a program
    <!-- before: CODE -->     what a reader has done by then, in Python, or a command per line
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

import stagecut
from stagecut.cli import app

#: Languages of blocks that are executed, and of those that are what programs print or read.
PROGRAMS, DATA = ("python", "sh", "console"), ("text", "csv", "bibtex", "toml")

_BLOCK = re.compile(
    r"(?P<notes>(?:^<!--(?:(?!-->).)*-->\n+)*)^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_NOTE = re.compile(
    r"<!--\s*(not run|slow|file|before|exits with)(?::\s*|\s+)(.*?)\s*-->", re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, and what the comments before it say."""

    line: int
    language: str
    text: str
    notes: dict[str, str]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page."""
    return [
        Block(
            page[: found.start("text")].count("\n"),
            found["language"],
            found["text"],
            dict(_NOTE.findall(found["notes"])),
        )
        for found in _BLOCK.finditer(page)
    ]


def run(found: list[Block], folder: Path, *, slow: bool) -> None:
    """Execute the blocks of a page in a folder, which is the current one.

    Parameters
    ----------
    slow
        Whether those that take long are executed, too.
    """
    names: dict[str, object] = {"__name__": "page"}
    for block in found:
        if "not run" in block.notes or ("slow" in block.notes and not slow):
            continue
        before = block.notes.get("before", "")
        if before.startswith("stagecut "):
            _commands(before, 0)
        else:
            exec(before, names)
        if "file" in block.notes:
            (folder / block.notes["file"]).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, f"line {block.line}", "exec"), names)
        elif block.language == "json":
            _load(json.loads(block.text), folder)
        elif block.language in ("sh", "console"):
            text = block.text
            if block.language == "console":
                text = "\n".join(re.findall(r"^\$ (.*)", text, re.MULTILINE))
            _commands(text, int(block.notes.get("exits with", "0")))


def _commands(text: str, last: int) -> None:
    """Run commands of ours in this process, where libraries are loaded and kernels compiled."""
    lines = [
        words
        for line in text.replace("\\\n", " ").splitlines()
        if (words := shlex.split(line, comments=True)) and words[:2] != ["pip", "install"]
    ]
    for number, words in enumerate(lines):
        assert words[0] == "stagecut", f"only commands of Stagecut are run: {' '.join(words)}"
        done = CliRunner().invoke(app, words[1:])
        wanted = last if number == len(lines) - 1 else 0
        assert done.exit_code == wanted, f"{' '.join(words)}\n{done.output}\n{done.exception!r}"


def _load(value: dict[str, object], folder: Path) -> None:
    """Read a file of ours that a page shows."""
    path = folder / "shown.json"
    path.write_text(json.dumps(value))
    if value["format"] == "stagecut-cluster":
        stagecut.load_cluster(path)
    else:
        stagecut.topology(str(path))
