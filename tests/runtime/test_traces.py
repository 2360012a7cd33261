"""Traces, pictures and the comparison of plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from pipelines import plan_of, random_chain, random_plan

from stagecut import InputError, Link, accelerators_and_cpus, load, save
from stagecut.instances.formats.outline import outline, read_outline
from stagecut.runtime.diff import diff
from stagecut.runtime.pictures.gantt import draw_gantt
from stagecut.runtime.pictures.graph import draw_graph
from stagecut.runtime.pictures.marks import bars_of, html_page, marks_of, memory_steps, trace_events
from stagecut.runtime.simulate.network import HostMemory, point_to_point, shared
from stagecut.runtime.simulate.simulator import simulate, simulate_stages
from stagecut.runtime.simulate.stages import chain

_TIME = {"type": "number", "minimum": 0}
_TRACK = {"pid": {"type": "integer"}, "tid": {"type": "integer"}}


def _event(kind: str, required: list[str], **properties: object) -> dict[str, object]:
    names = ["ph", "name", "pid", *required]
    base = {"ph": {"const": kind}, "name": {"type": "string"}, **_TRACK}
    return {
        "type": "object", "required": names, "properties": base | properties,
        "additionalProperties": False,
    }  # fmt: skip


#: The part of the Trace Event Format that Stagecut writes ("Trace Event Format", Google, 2016).
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    _event(
                        "M", ["args"], args={"type": "object"},
                    ),
                    _event(
                        "X", ["tid", "ts", "dur"], ts=_TIME, dur=_TIME, cat={"type": "string"},
                        args={"type": "object"},
                    ),
                    _event(
                        "C", ["ts", "args"], ts=_TIME,
                        args={"type": "object", "additionalProperties": {"type": "number"}},
                    ),
                    _event(
                        "s", ["tid", "ts", "id"], ts=_TIME, id={"type": "integer"},
                        cat={"type": "string"},
                    ),
                    _event(
                        "f", ["tid", "ts", "id", "bp"], ts=_TIME, id={"type": "integer"},
                        cat={"type": "string"}, bp={"const": "e"},
                    ),
                ]
            },
        },
    },
}  # fmt: skip


def _runs():
    yield simulate_stages(random_chain(3), "1f1b", 4)
    yield simulate_stages(random_chain(4), "zb-h1", 4, network=HostMemory(overlap=True))
    stages = chain(
        [2.0, 1.0], [4.0, 2.0], replicas=[[0, 1], [2]], weight_bytes=[10.0, 7.0],
        payload_bytes=[3.0, 0.0],
    )  # fmt: skip
    yield simulate_stages(stages, "1f1b", 4, network=shared(3, Link(0.1, 10.0)))
    slow = point_to_point(3, Link(0.0, 0.5))
    yield simulate_stages(stages, "pipedream", 4, network=replace(slow, sharing="fair"))


@pytest.mark.parametrize("which", range(4))
def test_traces_conform_to_the_format(which: int) -> None:
    run = list(_runs())[which]
    trace = json.loads(json.dumps(trace_events(run)))
    jsonschema.validate(trace, SCHEMA)
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    actions = [e for e in slices if e["pid"] == 1 and e["name"][0].isdigit()]
    assert len(actions) == run.schedule.size
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(run.makespan * 1e6)
    begins = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "s"}
    ends = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "f"}
    assert begins.keys() == ends.keys()
    for number, begin in begins.items():
        assert begin["ts"] < ends[number]["ts"]
        assert begin["tid"] != ends[number]["tid"]
    for flow in (*begins.values(), *ends.values()):  # bound to a slice
        assert any(
            e["tid"] == flow["tid"] and e["ts"] <= flow["ts"] <= e["ts"] + e["dur"] for e in actions
        )


@pytest.mark.parametrize("which", range(4))
def test_slices_of_a_track_nest(which: int) -> None:
    run = list(_runs())[which]
    slices = [e for e in trace_events(run)["traceEvents"] if e["ph"] == "X"]
    for track in {(e["pid"], e["tid"]) for e in slices}:
        events = [(e["ts"], -e["dur"]) for e in slices if (e["pid"], e["tid"]) == track]
        stack: list[float] = []
        for start, minus in sorted(events):
            while stack and stack[-1] <= start + 1e-6:
                stack.pop()
            assert not stack or start - minus <= stack[-1] + 1e-6
            stack.append(start - minus)


@pytest.mark.parametrize("which", range(4))
def test_bars_fill_the_busy_time(which: int) -> None:
    run = list(_runs())[which]
    total = np.zeros(len(run.starts))
    for bar in bars_of(run):
        if bar.lane < len(run.used):
            total[run.used[bar.lane]] += bar.end - bar.start
    assert total == pytest.approx(run.busy)


def test_copy_engines_whose_transfers_take_no_time_have_no_lane() -> None:
    stages = chain([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], send=[0.5, 0.0])
    run = simulate_stages(stages, "1f1b", 4, network=HostMemory(overlap=True))
    busy = [lane for lane in marks_of(run).lanes if lane.endswith("engine")]
    assert busy == ["device 0 copy engine", "device 1 copy engine"]


def test_memory_counters_begin_and_end_with_the_weights() -> None:
    run = next(iter(_runs()))
    for d in run.used:
        times, sizes = memory_steps(run, d)
        assert times[0] == 0.0
        assert sizes[-1] == run.memory[d].weights
        assert max(sizes) == run.memory[d].peak


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_gantt_charts(tmp_path: Path, ending: str) -> None:
    for i, run in enumerate(_runs()):
        path = tmp_path / f"{i}.{ending}"
        draw_gantt(run, path)
        assert path.stat().st_size > 5000


def test_the_memory_of_a_gantt_chart_is_in_the_unit_of_tables(tmp_path: Path) -> None:
    for activation, unit in ((3 * 2**30, "GiB"), (3 * 2**20, "MiB"), (100.0, "B")):
        stages = chain([1.0, 1.0], [1.0, 1.0], activation_bytes=[activation] * 2)
        draw_gantt(simulate_stages(stages, "1f1b", 2), tmp_path / "run.svg")
        assert f"<!-- memory ({unit}) -->" in (tmp_path / "run.svg").read_text()


def test_gantt_charts_refuse_what_cannot_be_drawn(tmp_path: Path) -> None:
    run = next(_runs())
    with pytest.raises(InputError, match=r"x\.doc"):
        draw_gantt(run, tmp_path / "x.doc")
    many = simulate_stages(chain([1.0] * 8, [1.0] * 8), "1f1b", 5000)
    with pytest.raises(InputError, match="too many to draw"):
        draw_gantt(many, tmp_path / "x.png")


def test_the_page_needs_nothing_else() -> None:
    run = next(_runs())
    text = html_page(run, title="<b> & co")
    assert "&lt;b&gt; &amp; co" in text
    assert "http" not in text
    embedded = text.split("const data = ")[1].split(";\n")[0]
    assert len(json.loads(embedded)["bars"]) == len(list(bars_of(run)))
    assert "@" not in html_page(run).split("<script>")[0]


def test_graphs_by_nodes_and_by_stages(tmp_path: Path) -> None:
    drawn = 0
    for seed in range(8):
        found = random_plan(seed, max_nodes=12)
        if found is None:
            continue
        for most in (0, 100):
            path = tmp_path / f"{seed}-{most}.svg"
            draw_graph(*found, path, most_nodes=most)
            assert "</svg>" in path.read_text()
            drawn += 1
        with pytest.raises(InputError, match="must end in"):
            draw_graph(*found, tmp_path / "x.txt")
    assert drawn


def test_a_plan_and_its_permutation_are_the_same() -> None:
    found = random_plan(11, max_nodes=8)
    assert found is not None
    workload, plan = found
    cluster = plan.cluster
    same = [d for d, device in enumerate(cluster.devices) if device.kind == 0]
    turn = np.arange(cluster.size)
    turn[same] = np.roll(same, 1)
    other = plan_of(workload, cluster, turn[plan.placement])
    assert diff(outline(workload, plan), outline(workload, other)).moved == ()


def test_what_moved_is_said() -> None:
    for seed in range(30):
        found = random_plan(seed, max_nodes=8)
        if found is None or found[1].cluster.size < 2 or found[0].n < 3:
            continue
        workload, plan = found
        device = plan.placement.copy()
        device[0] = (device[0] + 1) % plan.cluster.size
        other = plan_of(workload, plan.cluster, device)
        result = diff(outline(workload, plan), outline(workload, other))
        assert len(result.moved) <= 1 or len(set(plan.placement.tolist())) > 1
        assert result.to_pandas()["nodes"].sum() == workload.n
        assert sum(p.common for p in result.pairs) + len(result.moved) == workload.n


def test_what_moved_between_devices_that_have_swapped_is_named_by_the_first_plan() -> None:
    workload, cluster = load("unet"), accelerators_and_cpus(2, cpus=0)
    half = np.arange(workload.n) >= workload.n // 2
    first, swapped = half.astype(int), 1 - half.astype(int)
    swapped[0] = swapped[-1]
    plans = [plan_of(workload, cluster, device) for device in (first, swapped)]
    names = [device.name for device in cluster.devices]
    result = diff(*(outline(workload, plan) for plan in plans))
    assert result.moved == ((workload.ids[0], names[0], names[1]),)


def test_plans_of_different_workloads_are_not_compared() -> None:
    first, second = random_plan(1), random_plan(3)
    assert first is not None
    assert second is not None
    outlines = outline(*first), outline(*second)
    with pytest.raises(InputError, match="one workload"):
        diff(*outlines)


def test_pictures_of_a_real_plan(tmp_path: Path) -> None:
    found = random_plan(12, max_nodes=12)
    assert found is not None
    run = simulate(*found, "pipedream", 4)
    draw_gantt(run, tmp_path / "plan.svg", title="a plan")
    assert "a plan" in html_page(run, title="a plan")


def test_outlines_of_files_are_those_of_plans(tmp_path: Path) -> None:
    found = random_plan(12, max_nodes=12)
    assert found is not None
    save(found[1], tmp_path / "plan.json", found[0])
    assert read_outline(tmp_path / "plan.json") == outline(*found)
    broken = json.loads((tmp_path / "plan.json").read_text())
    broken["solution"]["devices"][0]["nodes"] = 5
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    with pytest.raises(InputError, match="nodes is 5; it must be a list"):
        read_outline(tmp_path / "broken.json")
    (tmp_path / "other.json").write_text('{"format": "stagecut-workload"}')
    with pytest.raises(InputError, match=r"other\.json"):
        read_outline(tmp_path / "other.json")
