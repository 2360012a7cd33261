"""The command line as a program: `stagecut`, or `python -m stagecut`."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it in one line."""
    waiting = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored
    if waiting:
        signal.signal(signal.SIGINT, lambda *_: end_interrupted())
    from stagecut.cli import main as command_line

    try:
        if waiting:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command_line()
    except KeyboardInterrupt:
        end_interrupted()


def end_interrupted() -> None:
    """End the process at once, as nothing was begun that is worth keeping."""
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
