"""`python -m stagecut` is the command line."""

from .cli import main

main()
