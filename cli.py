"""The command line: `stagecut COMMAND …`. Each command is a module in `commands/`."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .api.versions import installed
from .commands.common.console import BAD_INPUT, ERR, INFEASIBLE, INTERRUPTED, OUT
from .instances import InfeasibleError, StagecutError
from .instances.common.escape import one_line

#: Exception raised for wrong options: some releases of Typer have their own copy of Click.
UsageError: type[Any] = typer.BadParameter.__bases__[0]

#: Command → its module in `commands/`, and the function or group in it.
_COMMANDS = {
    **{
        name: (name, name)
        for name in (
            "solve", "verify", "simulate", "explain", "diff", "estimate", "compare", "learn",
            "profile", "run", "measure", "report", "export",
        )
    },
    "export-model": ("export", "export_model"),
    "warm": ("warm", "warm"),
    **{name: (name, "app") for name in ("checkpoint", "instances", "records")},
}  # fmt: skip


class _Commands(TyperGroup):
    """Group of commands, whose modules are imported when a command is called or completed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command, imported from its module, and remaining arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and command else command, rest

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, after giving each the first line of its help."""
        for name, command in self.commands.items():
            command.help = _first_line(*_COMMANDS[name])
        return super().list_commands(ctx)


def _first_line(module: str, attribute: str) -> str:
    """Return the first line of a command's help from the text of its module, without importing."""
    source = Path(__file__).with_name("commands") / f"{module}.py"
    before = r"^app = typer\.Typer\(help=" if attribute == "app" else rf"^def {attribute}\(.*?^    "
    found = re.search(rf'{before}"+(.+?)("|$)', source.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None
    return found[1]


@cache
def load_command(name: str) -> Any:
    """Return a command from its module."""
    module, attribute = _COMMANDS[name]
    given = getattr(import_module(f".commands.{module}", __package__), attribute)
    if not isinstance(given, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(given)
        given = alone
    command = typer.main.get_command(given)
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(lines.split()) for lines in paragraphs)  # wrapped anew
    return command


def _stand_in() -> None:
    """Do nothing, in place of a command whose module is not imported yet."""


app = typer.Typer(
    name="stagecut",
    cls=_Commands,
    help="Plan where the operators of a neural network run, with a certificate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name in _COMMANDS:
    app.command(_name)(_stand_in)


def _show_version(asked: bool) -> None:
    if asked:
        OUT.print_line(f"stagecut {installed('stagecut')}")
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Take the options that come before a command."""


def main() -> None:
    """Run the command line; bad input ends in one line and an exit code, not a traceback."""
    _keep_stdout()
    try:
        code = run_command(sys.argv[1:])
    except OSError:  # standard error is full or closed, too: nobody can be told
        code = BAD_INPUT
    _leave(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; see `main`."""
    try:
        code = app(list(arguments), prog_name="stagecut", standalone_mode=False)
        if code == INTERRUPTED:  # Typer's for Ctrl-C
            ERR.print_line("interrupted")
        return code if isinstance(code, int) else 0
    except StagecutError as error:
        ERR.print_line(f"error: {error}", style="red")
        return INFEASIBLE if isinstance(error, InfeasibleError) else BAD_INPUT
    except UsageError as error:
        text = error.format_message().replace("Value error, ", "")  # of pydantic, which checks
        if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands, and none named
            ERR.print_line(text)
        else:
            vague = text.startswith(("Missing", "No such command", "Got unexpected"))
            remedy = f"; see {error.ctx.command_path} --help" if vague and error.ctx else ""
            text = one_line(text).removesuffix(".") if remedy else one_line(text)
            ERR.print_line(f"error: {text}{remedy or _field_of(error)}", style="red")
        return BAD_INPUT
    except OSError as error:  # of the machine: a full disk, no folder for temporary files
        where = "" if error.filename is None else f"{error.filename}: "
        text = one_line(f"error: {where}{error.strerror or error}")
        ERR.print_line(text, style="red")
        return BAD_INPUT
    except MemoryError:
        text = "error: there is not enough memory; give the process more (see ulimit -v)"
        ERR.print_line(text, style="red")
        return BAD_INPUT
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _field_of(error: Any) -> str:
    """Return a hint for an option of `estimate` that `solve` takes as a field; else empty."""
    if error.ctx is None or error.ctx.info_name not in ("solve", "compare"):
        return ""
    from .commands.estimate import OPTION_OF

    given = getattr(error, "option_name", "")
    fields = [name for name, option in OPTION_OF.items() if option == given]
    return f"; to fix it in a training job, say --set {fields[0]}=…" if fields else ""


def _leave(code: int) -> None:
    """End the process even if a thread of a solver that did not stop in time still runs."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # it is full or closed, as was told; Python would say so again at its end
        os._exit(code or BAD_INPUT)
    # Python ends itself by the signal if an interrupt has passed through `exec`
    if threading.active_count() > 1 or code == INTERRUPTED:
        os._exit(code)
    sys.exit(code)


def _keep_stdout() -> None:
    """Keep standard output for what the commands print; both may be closed from the start.

    HiGHS 1.12 prints a debugging line past Python, straight to file descriptor 1, which would
    spoil ``--json``: that descriptor leads nowhere from now on, and Python writes to a copy of it.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        ours = os.dup(1)
    except OSError:  # it is closed
        ours = os.dup(nowhere)
    os.dup2(nowhere, 1)
    if nowhere != 1:
        os.close(nowhere)
    sys.stdout = os.fdopen(ours, "w", encoding="utf-8", errors="replace")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


if __name__ == "__main__":
    main()
