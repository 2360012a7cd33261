"""The command line: `stagecut COMMAND …`. Each command is a module in `commands/`."""

from __future__ import annotations

import time

STARTED = time.monotonic()  # deadlines count from here, imports included

import sys  # noqa: E402

import typer  # noqa: E402

from .commands import instances  # noqa: E402
from .commands.compare import compare  # noqa: E402
from .commands.console import BAD_INPUT, ERR, INFEASIBLE  # noqa: E402
from .commands.export_model import export_model  # noqa: E402
from .commands.solve import solve  # noqa: E402
from .commands.verify import verify  # noqa: E402
from .instances import InfeasibleError, StagecutError  # noqa: E402

app = typer.Typer(
    name="stagecut",
    help="Plan where the operators of a neural network run, with a certificate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(solve)
app.command()(verify)
app.command()(compare)
app.command("export-model")(export_model)
app.add_typer(instances.app, name="instances")


def main() -> None:
    """Run the command line; bad input ends in one line and an exit code, not a traceback."""
    try:
        app()
    except StagecutError as error:
        ERR.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(INFEASIBLE if isinstance(error, InfeasibleError) else BAD_INPUT)


if __name__ == "__main__":
    main()
