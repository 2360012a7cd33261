"""Named options: an enum or its text will do; what is neither is refused with the choices."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import pytest

import stagecut
from stagecut import (
    DeviceKind,
    DeviceMapping,
    InputError,
    Link,
    PipelineJob,
    Throughput,
    cli,
    topology,
)
from stagecut.instances import LayerRule, Placement, Split
from stagecut.instances.common.choices import Choice
from stagecut.instances.common.units import parse_bytes, parse_rate
from stagecut.runtime.schedules import Schedule
from stagecut.runtime.simulate import shared

RING = topology("ring:2")

#: What takes choices, by field.
TAKERS: list[tuple[str, type[Choice], Callable[..., object]]] = [
    ("split", stagecut.instances.Split, Throughput),
    ("cpu_split", stagecut.instances.CpuSplit, Throughput),
    ("pipeline", stagecut.instances.Pipeline, Throughput),
    ("recomputation", stagecut.instances.Recomputation, PipelineJob),
    ("recomputation", stagecut.instances.Recomputation, lambda **given: LayerRule(0, **given)),
    ("in_flight", stagecut.instances.InFlight, PipelineJob),
    ("optimizer", stagecut.instances.Optimizer, PipelineJob),
    ("precision", stagecut.instances.Precision, PipelineJob),
    ("mode", stagecut.instances.MappingMode, lambda **given: DeviceMapping(RING, 2, 1, **given)),
    (
        "collective",
        stagecut.instances.Collective,
        lambda **given: DeviceMapping(RING, 2, 1, **given),
    ),
    (
        "versions",
        stagecut.runtime.schedules.WeightVersions,
        lambda **given: Schedule("none", 1, (), **given),
    ),
    ("sharing", stagecut.runtime.simulate.Sharing, lambda **given: shared(2, Link(0, 1), **given)),
]
IDS = [f"{taker[0]}-{i}" for i, taker in enumerate(TAKERS)]


@pytest.mark.parametrize(("field", "choice", "make"), TAKERS, ids=IDS)
def test_texts_become_the_choices_that_they_name(
    field: str, choice: type[Choice], make: Callable[..., object]
) -> None:
    for one in choice:
        assert getattr(make(**{field: one}), field) is one
        assert getattr(make(**{field: one.value}), field) is one
    for wrong in ("nonsense", 1, [], None if field != "collective" else 0):
        if field == "recomputation" and wrong is None:
            continue  # a rule without it
        with pytest.raises(InputError) as error:
            make(**{field: wrong})
        assert str(error.value).endswith(f"is not one of {', '.join(choice)}")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Throughput(overlap="no"), 'overlap: "no"; it must be true or false'),
        (lambda: PipelineJob(relayed=1), "relayed: 1; it must be true or false"),
        (lambda: PipelineJob(bandwidth="25"), 'bandwidth is "25"; it must be a number'),
        (lambda: PipelineJob(weight_share="half"), 'weight_share is "half"; it must be a number'),
        (lambda: PipelineJob(degrees=4), "degrees: 4; it must be a list of whole numbers"),
        (
            lambda: Placement([0.5, 1.0]),
            "device: it must be a list of whole numbers, not of float64",
        ),
        (lambda: DeviceKind("gpu", 1, host="no"), 'gpu: host is "no"; it must be true or false'),
        (lambda: DeviceMapping("ring:4", 2), 'topology: "ring:4"; give a Topology'),
        (lambda: parse_bytes("16iB", "memory"), 'memory: "16iB"; write a size'),
        (lambda: parse_bytes("16GB/s", "memory"), 'memory: "16GB/s"; write a size'),
        (lambda: parse_bytes("1e400", "memory"), 'memory: "1e400"; write a size'),
        (lambda: parse_rate("25GB", "network"), 'network: "25GB"; write a rate'),
        (lambda: parse_rate("0GB/s", "network"), 'network: "0GB/s"; write a rate'),
    ],
)
def test_values_of_other_types_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value).startswith(message)


def test_a_choice_is_its_text_wherever_it_is_shown_or_written() -> None:
    assert repr(Throughput(split="per-device")) == repr(Throughput(split=Split.PER_DEVICE))
    assert "split='per-device'" in repr(Throughput(split="per-device"))
    assert json.dumps([Split.PER_DEVICE]) == '["per-device"]'
    assert f"{Split.PER_DEVICE}" == Split.PER_DEVICE == "per-device"
    assert pickle.loads(pickle.dumps(Split.PER_DEVICE)) is Split.PER_DEVICE


@pytest.mark.parametrize(
    ("command", "option", "choice"),
    [
        ("solve", "--split", stagecut.instances.Split),
        ("compare", "--split", stagecut.instances.Split),
        ("export-model", "--split", stagecut.instances.Split),
        ("simulate", "--sharing", stagecut.runtime.simulate.Sharing),
        ("profile", "--tied", stagecut.instances.Tied),
        ("measure", "--links", stagecut.runtime.measure.LinkDetail),
    ],
)
def test_the_command_line_has_the_choices_of_the_enums(
    command: str, option: str, choice: type[Choice], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run_command([command, option, "nonsense"]) == 2
    said = capsys.readouterr().err
    assert option in said
    assert all(f"'{one}'" in said for one in choice), said
