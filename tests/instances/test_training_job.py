"""A training job is a stream or an iteration, and says in one line what does not belong to it."""

from __future__ import annotations

from dataclasses import fields

import pytest
from conformance import task

from stagecut import InputError, PipelineJob
from stagecut.instances import LayerRule, is_iteration, is_stream
from stagecut.instances.model.pipeline_job import OF_ITERATIONS, OF_STREAMS

#: Fields of one kind, with values that are no defaults.
STREAM: dict[str, object] = {
    "in_flight": "2bw", "bandwidth": 1e9, "degrees": (1,), "replicas": (1, 2),
    "recomputation": "off", "rules": (LayerRule(1),), "uncut": ((1, 2),), "optimizer": "adam",
    "precision": "mixed",
}  # fmt: skip
ITERATION: dict[str, object] = {
    "split": "noncontiguous", "chunks": 2, "relayed": True, "overlap": True, "weight_share": 0.3,
    "actions": ("0F0,0B0",),
}  # fmt: skip


def test_every_field_is_of_streams_of_iterations_or_of_both() -> None:
    both = {"microbatches", "schedule", "placement_rules"}
    assert {item.name for item in fields(PipelineJob)} == {*OF_STREAMS, *OF_ITERATIONS, *both}
    assert {*STREAM, "server_devices", "server_bandwidth"} == set(OF_STREAMS)
    assert set(ITERATION) == set(OF_ITERATIONS)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("field", STREAM)
def test_iterations_refuse_what_streams_have(schedule: str, field: str) -> None:
    with pytest.raises(InputError) as error:
        PipelineJob(4, schedule, **{field: STREAM[field]})  # type: ignore[arg-type]
    assert str(error.value) == (
        f"{field}: it belongs to the schedule stream, and the schedule is {schedule}; leave it "
        "out, or choose another schedule"
    )


@pytest.mark.parametrize("field", ITERATION)
def test_streams_refuse_what_iterations_have(field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: it belongs to a schedule of M microbatches"):
        PipelineJob(4, "stream", **{field: ITERATION[field]})  # type: ignore[arg-type]


def test_an_iteration_has_a_number_of_microbatches() -> None:
    with pytest.raises(InputError, match="say how many an iteration has"):
        PipelineJob(schedule="1f1b")
    assert PipelineJob(schedule="stream").microbatches is None


@pytest.mark.parametrize("kind", ["stream", "iteration"])
def test_the_usual_schedule_follows_the_workload(kind: str) -> None:
    workload = task(kind).workload
    job = PipelineJob(4).for_workload(workload)
    assert (is_stream(job), is_iteration(job)) == (kind == "stream", kind == "iteration")
    assert job.schedule == ("stream" if kind == "stream" else "1f1b")
    other = STREAM if kind == "iteration" else ITERATION
    for field, value in other.items():
        with pytest.raises(InputError, match=f"^{field}: "):
            PipelineJob(4, **{field: value}).for_workload(workload)  # type: ignore[arg-type]


def test_layers_have_no_passes_to_schedule() -> None:
    with pytest.raises(InputError, match="layer configurations, which say no forward"):
        PipelineJob(4, "1f1b").for_workload(task("stream").workload)


def test_the_summary_shows_the_fields_of_its_schedule() -> None:
    assert set(PipelineJob(4, "1f1b").summary()) & set(OF_STREAMS) == set()
    assert set(PipelineJob(4, "stream").summary()) & set(OF_ITERATIONS) == set()
