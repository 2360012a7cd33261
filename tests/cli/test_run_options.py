"""Ranks compare their options before they start: the difference is named, and nobody waits."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from stagecut.instances.common.errors import StagecutError  # noqa: E402
from stagecut.runtime.execution.guard.failures import Heartbeats  # noqa: E402
from stagecut.runtime.execution.options import RunOptions  # noqa: E402

GIVEN = RunOptions(steps=2)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(GIVEN, record=Path("run.json")), "another --record than rank 0 (given, none)"),
        (
            replace(GIVEN, checkpoint=Path("/kept")),
            "another --checkpoint than rank 0 ('/kept', none)",
        ),
        (replace(GIVEN, optimizer="adam"), "another --optimizer than rank 0 (adam, sgd)"),
        (replace(GIVEN, learning_rate=0.5), "another --lr than rank 0 (0.5, 0.01)"),
        (replace(GIVEN, steps=3), "another --steps than rank 0 (3, 2)"),
    ],
)
def test_a_difference_of_options_is_named(other: RunOptions, said: str) -> None:
    store = torch.distributed.HashStore()
    errors: list[str] = []

    def rank(number: int, options: RunOptions) -> None:
        heartbeats = Heartbeats.__new__(Heartbeats)
        heartbeats.store, heartbeats.rank, heartbeats.world, heartbeats.timeout_s = (
            store,
            number,
            2,
            20.0,
        )
        try:
            heartbeats.join({"plan": "a" * 64, **options.identity()})
        except StagecutError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=rank, args=given) for given in ((0, GIVEN), (1, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    assert all(said in error for error in errors)
