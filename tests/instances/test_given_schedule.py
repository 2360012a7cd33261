"""Schedules that users give: what is wrong is said in one line, with row and column."""

from __future__ import annotations

import re

import numpy as np
import pytest
from given_orders import random_devices, random_rows

from stagecut import InputError, PipelineJob, make_schedule
from stagecut.instances.model.schedule import given_order
from stagecut.runtime.schedules import read_csv, validate
from stagecut.runtime.simulate.stages import chain

GOOD = ("0F0,0F1,,0B0,0B1", ",1F0,1B0,1F1,1B1")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "no actions; give a row of cells"),
        ((" , ",), "no actions; give a row of cells"),
        (("0F0,0B0", ""), "row 2: no actions"),
        (("0F0,0B0x",), 'row 1, column 2: .*0B0x.* is not an action'),
        (("0F0,junk",), "row 1, column 2: .*junk"),
        (("0F0 0B0",), "row 1, column 1"),
        (("0F0,-1B0",), "row 1, column 2"),
        (("0F0,0SEND_F0,0B0",), "row 1, column 2: 0SEND_F0 is no pass"),
        (("0F0,0STEP",), "row 1, column 2: 0STEP is no pass"),
        (("0F0,0F0,0B0",), "row 1, column 2: 0F0 is in row 1, column 1 already"),
        (("0F0,0B0", "1F0,1B0,0F1,0B1"), "row 2, column 3: 0F1 is on another device than 0F0"),
        (("0F0,0B0,2F0,2B0",), "no stage 1, but a stage 2"),
        (("0F0,0B0,999999999F0",), "no stage 1, but a stage 999999999"),
        (("0F0,0B0,0F2,0B2",), "no microbatch 1, but a microbatch 2"),
        (("0F0,0F1,0B1",), "0B0 is missing; it belongs in row 1"),
        (("0F0,0F1,0B0,0B1", "1F0,1B0,1B1"), "1F1 is missing; it belongs in row 2"),
        (("0F0,0I0",), "0W0 is missing"),
        (("0F0,0B0,0W0",), "row 1, column 3: 0W0, and also 0B0 .row 1, column 2.; use one form"),
        (("0B0,0F0",), "row 1, column 1: 0B0 comes before 0F0 .column 2."),
        (("0F0,0W0,,0I0",), "row 1, column 2: 0W0 comes before 0I0 .column 4."),
        (("1F0,0F0,1B0,0B0",), "row 1, column 1: 1F0 comes before 0F0"),
        (
            ("0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1"),
            "deadlock: row 1, column 2: 0B0 waits for 1B0 .row 2, column 3.; "
            "row 2, column 2: 1F1 waits for 0F1 .row 1, column 3.",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        given_order(rows, "my.csv")
    assert re.fullmatch(r"my\.csv: [^\n]+", str(error.value))
    with pytest.raises(InputError, match=r"^actions: "):
        PipelineJob(2, "given", actions=rows)


def test_an_iteration_keeps_the_passes_and_no_idle_steps() -> None:
    problem = PipelineJob(2, "given", actions=GOOD)
    assert problem.actions == ("0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1")
    assert problem == PipelineJob(2, "given", actions=problem.actions)
    assert problem.devices_of(2) == (0, 1)
    for options, message in (
        ({"microbatches": 3}, "microbatches: 3; the actions are of 2"),
        ({"schedule": "1f1b"}, "only the schedule given has them"),
        ({"split": "noncontiguous"}, "needs a chain of stages"),
        ({"chunks": 2}, "only the schedule interleaved"),
    ):
        given = {"microbatches": 2, "schedule": "given", "actions": GOOD, **options}
        with pytest.raises(InputError, match=message):
            PipelineJob(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", range(4))
def test_orders_of_executions_are_accepted_and_changed_ones_as_the_simulator_says(
    part: int,
) -> None:
    """Two actions of a row change places: both checks, written apart, accept or refuse."""
    refused = 0
    for seed in range(part, 120, 4):
        rng = np.random.default_rng([seed, 17])
        stages = int(rng.integers(1, 6))
        device = random_devices(rng, 4, stages)
        rows = random_rows(rng, device, int(rng.integers(1, 5)), bool(rng.random() < 0.8))
        order = given_order(rows, "rows")
        assert order.device == device
        assert order.texts == rows
        d = int(rng.integers(len(rows)))
        cells = rows[d].split(",")
        a, b = rng.integers(len(cells), size=2)
        cells[a], cells[b] = cells[b], cells[a]
        changed = (*rows[:d], ",".join(cells), *rows[d + 1 :])
        backward = [1.0] * stages if order.trains else None
        graph = chain([1.0] * stages, backward, device=list(device))
        words = []
        for check in (
            lambda changed=changed: given_order(changed, "rows"),
            lambda changed=changed, graph=graph: validate(read_csv("\n".join(changed)), graph),
        ):
            try:
                check()
                words.append("accepted")
            except InputError:
                words.append("refused")
        assert len(set(words)) == 1, f"seed {seed}: {changed}"
        refused += "refused" in words
    assert refused > 5


def test_schedules_with_a_name_are_accepted() -> None:
    graph = chain([1.0] * 4, [2.0] * 4)
    for name in ("1f1b", "gpipe", "zb-h1", "zb-h2"):
        schedule = make_schedule(name, graph, 5)
        rows = [",".join(map(str, schedule.of(d))) for d in range(4)]
        assert given_order(rows, name).texts == tuple(rows)
