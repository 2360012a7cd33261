"""The command line: `stagecut COMMAND …`. Each command is a module in `commands/`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import typer

from .commands import instances, records
from .commands.compare import compare
from .commands.console import BAD_INPUT, ERR, INFEASIBLE
from .commands.diff import diff
from .commands.export import export
from .commands.export_model import export_model
from .commands.map import map_stages
from .commands.measure import measure
from .commands.profile import profile
from .commands.report import report
from .commands.run import run
from .commands.simulate import simulate
from .commands.solve import solve
from .commands.verify import verify
from .instances import InfeasibleError, StagecutError
from .instances.common.escape import one_line

#: What wrong options raise: Typer has its own copy of Click, in some releases.
UsageError: type[Any] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="stagecut",
    help="Plan where the operators of a neural network run, with a certificate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(solve)
app.command()(verify)
app.command()(simulate)
app.command()(diff)
app.command("map")(map_stages)
app.command()(compare)
app.command()(profile)
app.command()(run)
app.command()(measure)
app.command()(report)
app.command()(export)
app.command("export-model")(export_model)
app.add_typer(instances.app, name="instances")
app.add_typer(records.app, name="records")


def main() -> None:
    """Run the command line; bad input ends in one line and an exit code, not a traceback."""
    _keep_stdout()
    _leave(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; see `main`."""
    try:
        code = app(list(arguments), prog_name="stagecut", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except StagecutError as error:
        ERR.print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
        return INFEASIBLE if isinstance(error, InfeasibleError) else BAD_INPUT
    except UsageError as error:
        text = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands, and none named
            ERR.print(text, highlight=False, soft_wrap=True)
        else:
            ERR.print(f"error: {one_line(text)}", style="red", highlight=False, soft_wrap=True)
        return BAD_INPUT
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _leave(code: int) -> None:
    """End the process, also if a solver that did not stop in time is still at work in a thread."""
    sys.stdout.flush()
    sys.stderr.flush()
    if threading.active_count() > 1:
        os._exit(code)
    sys.exit(code)


def _keep_stdout() -> None:
    """Keep standard output for what the commands print.

    HiGHS 1.12 prints a debugging line past Python, straight to file descriptor 1, which would
    spoil ``--json``: that descriptor leads nowhere from now on, and Python writes to a copy of it.
    """
    ours = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = os.fdopen(ours, "w", encoding="utf-8", errors="replace")


if __name__ == "__main__":
    main()
