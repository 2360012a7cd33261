"""The program of a worker process: run the function that comes in, talk through the pipes."""

from __future__ import annotations

import os
import pickle
import sys

from .processes import Pipes


def main() -> None:
    """Run one function to its end; the process ends with it, and with its pipes."""
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between messages
    body, argument = pickle.load(sys.stdin.buffer)
    body(argument, Pipes(sys.stdin.buffer, outgoing))
    outgoing.flush()
    os._exit(0)  # threads of HiGHS that do not listen are not waited for


if __name__ == "__main__":
    main()
