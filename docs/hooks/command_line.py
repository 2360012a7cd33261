"""The page of all commands, made from the command line itself."""

from __future__ import annotations

import inspect
import re
from html import escape
from typing import Any

import typer.main

INTRODUCTION = (
    "This page is made from the command line: `--help` of a command says the same. `stagecut "
    "--install-completion` lets the shell complete commands, options and their values. Exit codes: "
    "0 a plan, 2 bad input, 3 infeasible (with the reason), 4 no plan within the limit."
)


def commands_page() -> str:
    """Return every command with its arguments and options as Markdown."""
    from stagecut import cli

    parts = ["# Commands", INTRODUCTION]
    app: Any = typer.main.get_command(cli.app)
    for name in app.commands:
        parts += _described(f"stagecut {name}", cli.load_command(name))
    return "\n\n".join(parts)


def _described(title: str, command: Any) -> list[str]:
    """Return heading, text and table of a command; of a group's commands one after the other."""
    inner = getattr(command, "commands", None)
    if inner:
        return [part for name in inner for part in _described(f"{title} {name}", inner[name])]
    ctx = command.make_context(title, [], resilient_parsing=True)
    rows = [parameter.get_help_record(ctx) for parameter in command.params]
    table = [
        f"| `{_plain(left)}` | {escape(_plain(right))} |" for left, right in filter(None, rows)
    ]
    if table:
        table = ["| argument or option | meaning |", "|---|---|", *table]
    return [f"## {title}", inspect.cleandoc(command.help or ""), "\n".join(table)]


def _plain(text: str) -> str:
    """Return a text without colours, in one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
