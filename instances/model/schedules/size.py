"""How many actions a schedule may have."""

from __future__ import annotations

from ...common.errors import InputError, quote

#: Largest schedule: it and its simulation take some 100 bytes per action.
MOST_ACTIONS = 20_000_000


def check_size(stages: int, microbatches: int) -> None:
    """Raise InputError if a schedule has too many actions; asked before they are made."""
    if microbatches < 1:
        raise InputError(f"microbatches: {quote(microbatches)}; at least 1 is needed")
    if 2 * stages * microbatches > MOST_ACTIONS:
        raise InputError(
            f"microbatches: {quote(microbatches)} in {stages} stages are more than "
            f"{MOST_ACTIONS} actions; take fewer"
        )
