"""Schedules: closed forms, text forms, and what validation finds."""

from __future__ import annotations

import numpy as np
import pytest
from pipelines import random_chain, random_plan

from stagecut import InputError, Link
from stagecut.runtime.schedules import (
    SCHEDULES,
    make_schedule,
    parse_action,
    read_csv,
    schedule_of,
    step_table,
    validate,
    write_csv,
)
from stagecut.runtime.schedules.patterns import list_schedule
from stagecut.runtime.simulate.network import HostMemory
from stagecut.runtime.simulate.plan_stages import stages_of
from stagecut.runtime.simulate.simulator import simulate_stages
from stagecut.runtime.simulate.stages import chain

TRAINING = [name for name in SCHEDULES if name not in ("single", "inference")]
SHAPES = [(1, 1), (1, 5), (2, 1), (3, 2), (4, 4), (4, 8), (7, 5), (8, 64)]


@pytest.mark.parametrize(("stages", "m"), SHAPES)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_equal_stages_meet_the_closed_forms(stages: int, m: int, name: str) -> None:
    forward, backward = 0.7, 1.3
    run = simulate_stages(chain([forward] * stages, [backward] * stages), name, m)
    assert run.makespan == pytest.approx((m + stages - 1) * (forward + backward), rel=1e-9)
    assert run.bubbles == pytest.approx((stages - 1) / (m + stages - 1), rel=1e-9, abs=1e-12)
    assert run.time_per_sample == pytest.approx(forward + backward, rel=1e-9)
    held = [memory.in_flight[s] for s, memory in enumerate(run.memory)]
    assert held == [m if name == "gpipe" else min(stages - s, m) for s in range(stages)]


@pytest.mark.parametrize("seed", range(20))
def test_gpipe_with_unequal_stages(seed: int) -> None:
    stages, m = random_chain(seed), 1 + seed % 7
    forward, backward = stages.duration.T
    run = simulate_stages(stages, "gpipe", m)
    expected = stages.duration.sum() + (m - 1) * (forward.max() + backward.max())
    assert run.makespan == pytest.approx(expected, rel=1e-9)
    assert run.time_per_sample == pytest.approx(forward.max() + backward.max(), rel=1e-9)


@pytest.mark.parametrize(("stages", "m"), [(2, 4), (3, 6), (4, 8), (4, 32), (8, 24)])
def test_zero_bubble_h1_has_a_third_of_the_bubble_at_the_same_peak(stages: int, m: int) -> None:
    equal = chain([1.0] * stages, [2.0] * stages, activation_bytes=[1.0] * stages)  # F = I = W
    plain, h1, h2 = (simulate_stages(equal, name, m) for name in ("1f1b", "zb-h1", "zb-h2"))
    assert h1.makespan - h1.busy == pytest.approx((plain.makespan - plain.busy) / 3, rel=1e-9)
    assert max(h1.peak_memory.values()) == max(plain.peak_memory.values()) == min(stages, m)
    if m >= 2 * stages - 1:  # H2 fills its span: no device waits between begin and end
        spans = h2.to_pandas()["end"] - h2.to_pandas()["begin"]
        assert spans.to_numpy() == pytest.approx(h2.busy, rel=1e-9)
        assert max(h2.peak_memory.values()) == 2 * stages - 1


def test_no_more_microbatches_are_in_flight_than_the_limit() -> None:
    limit = np.array([2, 1])
    made = list_schedule(
        chain([1.0] * 2, [2.0] * 2), 4, "limited", limit=limit, weight_limit=2 * limit
    )
    for device, most in ((0, 2), (1, 1)):
        passes = [a.kind.name for a in made.of(device) if a.kind.name in "FI"]
        assert max(np.cumsum([1 if name == "F" else -1 for name in passes])) == most


@pytest.mark.parametrize(("devices", "chunks", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 8), (3, 4, 12)])
def test_interleaving_divides_the_bubble_by_the_chunks(devices: int, chunks: int, m: int) -> None:
    where = list(range(devices)) * chunks
    run = simulate_stages(
        chain([1.0] * len(where), [2.0] * len(where), device=where), "interleaved", m
    )
    assert run.makespan - run.busy == pytest.approx((devices - 1) * 3.0, rel=1e-9)
    assert run.busy == pytest.approx(3.0 * chunks * m)


@pytest.mark.parametrize("seed", range(12))
def test_1f1b_holds_what_the_replicas_ask_for(seed: int) -> None:
    stages = random_chain(seed, most_replicas=3)
    number = np.array([len(devices) for devices in stages.replicas])
    expected = -(-np.cumsum(number[::-1])[::-1] // number)
    run = simulate_stages(stages, "1f1b", 24, network=HostMemory(all_reduce=Link(0.0, 1e12)))
    for s, devices in enumerate(stages.replicas):
        for d in devices:
            assert run.memory[d].in_flight[s] <= expected[s]


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("seed", range(30))
def test_every_schedule_fits_every_plan(name: str, seed: int) -> None:
    if seed % 3 == 0:
        stages = random_chain(seed, most_replicas=3)
    else:
        found = random_plan(seed, max_nodes=12, max_accelerators=4)
        if found is None:
            return
        stages = stages_of(*found)
    network = HostMemory(all_reduce=Link(0.5, 100.0))
    schedule = make_schedule(name, stages, 1 + seed % 7, network)
    validate(schedule, stages)
    run = simulate_stages(stages, schedule, network=network)
    assert run.makespan >= stages.load.max() * (1 - 1e-9)  # one sample's work at least
    again = read_csv(write_csv(schedule))
    pairs = zip(again.actions, schedule.actions, strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "text",
    [
        "2F0",
        "12B345",
        "0I7",
        "3W2",
        "2RECV_F0",
        "2SEND_B1",
        "1REDUCE_GRAD",
        "1REDUCE_GRAD12",
        "0STEP",
    ],
)
def test_actions_read_back(text: str) -> None:
    assert str(parse_action(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "F0", "2F", "2F0junk", "2f0", "2F0 ", "-1F0", "2F-1", "2X0", "2STEP0", "2F0,", "٢F0"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not an action"):
        parse_action(text)


def test_a_bad_cell_is_named() -> None:
    with pytest.raises(InputError, match=r'row 2, column 3: "1F0x" is not an action'):
        read_csv("0F0,0B0\n1F0,,1F0x\n")
    with pytest.raises(InputError, match="no actions"):
        read_csv(",,\n")


TWO = chain([1.0, 1.0], [1.0, 1.0])


def _given(text: str):
    return read_csv(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\n", "it has 1 row(s); the plan has 2 device(s)"),
        ("0F0,0B0\n1F0,1B0,2F0\n", "row 1, action 2, 2F0: the plan has stages 0 to 1"),
        ("0F0,0B0,1F0\n1B0\n", "row 0, action 2, 1F0: the stage, or its replica"),
        ("0F0,0B0,0F0\n1F0,1B0\n", "row 0, action 2, 0F0: it occurs twice"),
        ("0F0,0B0\n1F0,1B0,1I0\n", "stage 1 has 1B0 and also"),
        ("0F0,0B0\n1F0\n", "1B0 is missing; it belongs on device 1"),
        ("0F0,0I0\n1F0,1B0\n", "0W0 is missing"),
        ("0F0,0SEND_F0,0B0\n1F0,1B0\n", "0SEND_F0: transfers follow from the stages"),
        ("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n1F0,1B0\n", "occurs twice"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(InputError, match="schedule: ") as caught:
        validate(_given(text), TWO)
    assert message in str(caught.value)


def test_a_deadlock_is_shown_with_the_places_marked() -> None:
    schedule = _given("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    for check in (validate, lambda s, p: simulate_stages(p, s)):
        with pytest.raises(InputError) as caught:
            check(schedule, TWO)
        text = str(caught.value)
        assert "deadlock: 0B0 on device 0 waits for 1B0; 1F1 on device 1 waits for 0F1" in text
        table = text.splitlines()[1:]
        assert table[0].split() == ["step", "device", "0", "device", "1"]
        assert table[-1].split() == ["2", ">>0B0<<", ">>1F1<<"]


def test_the_table_of_a_whole_schedule() -> None:
    lines = step_table(make_schedule("1f1b", TWO, 2)).splitlines()
    assert lines[1].split() == ["0", "0F0", "1F0"]
    assert len(lines) == 5


def test_w_before_its_i_is_a_deadlock() -> None:
    with pytest.raises(InputError, match="0W0 on device 0 waits for 0I0"):
        validate(_given("0F0,0W0,0I0\n1F0,1B0\n"), TWO)


def test_inference_schedules_refuse_training() -> None:
    for name in ("single", "inference"):
        with pytest.raises(InputError, match="is for inference"):
            make_schedule(name, TWO, 1)
    with pytest.raises(InputError, match="one request at a time"):
        make_schedule("single", chain([1.0]), 2)
    with pytest.raises(InputError, match="no 'x'"):
        make_schedule("x", TWO, 2)
    with pytest.raises(InputError, match="at least 1"):
        make_schedule("1f1b", TWO, 0)


def test_mixed_whole_and_split_backwards() -> None:
    schedule = schedule_of(
        [
            [parse_action(text) for text in ["0F0", "0F1", "0B0", "0B1"]],
            [parse_action(text) for text in ["1F0", "1I0", "1F1", "1B1", "1W0"]],
        ]
    )  # fmt: skip
    run = simulate_stages(chain([1.0, 1.0], [2.0, 2.0]), schedule)
    assert run.ends[1].tolist() == [2.0, 3.0, 4.0, 6.0, 7.0]
    assert run.starts[0].tolist() == [0.0, 1.0, 3.0, 6.0]


def test_no_schedule_takes_less_per_microbatch_than_its_busiest_device() -> None:
    rows = "0F0,0F1,0F2,0B0,0F3,0B1,,0B2,,0B3\n,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
    run = simulate_stages(chain([4.0, 3.0], [8.0, 5.0]), read_csv(rows))
    assert run.time_per_sample >= 12.0
