"""The usual choices for a job, and the published recipes that one of them takes."""

import csv
import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest
from project import ROOT

from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.hardware import NumberFormat
from stagecut.instances.costs.layout import Layout, check_layout
from stagecut.instances.costs.memory import peak_memory
from stagecut.instances.costs.models import model_description
from stagecut.instances.job.launchers import runs
from stagecut.instances.job.usual_layouts import (
    layout_of,
    nearest_recipe,
    published_recipes,
    usual_layouts,
)

MODELS = ("llama3.2-1b", "llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b")
CLUSTERS = ("a100:8x1", "h100:8x8", "h100:8x128", "gb200:64x4", "b200:8x32")


def with_bytes(nodes, memory):
    return replace(nodes, accelerator=replace(nodes.accelerator, memory_bytes=memory))


def usual(model, cluster, *, batch=512, sequence=4096, memory=None, **base):
    layout = Layout(global_batch=batch, sequence=sequence, **base)
    devices = training_cluster(cluster)
    if memory is not None:
        devices = replace(devices, nodes=tuple(with_bytes(one, memory) for one in devices.nodes))
    found = usual_layouts(model_description(model), devices, layout)
    return {one.name.split()[0]: one for one in found}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_what_is_chosen_is_legal_and_fits(model, cluster):
    rng = np.random.default_rng(len(model) * len(cluster))
    batch, sequence = int(rng.choice([96, 512, 2048])), int(rng.choice([2048, 4096, 16384]))
    limit = float(rng.choice([24, 80, 192])) * 2**30
    found = usual(model, cluster, batch=batch, sequence=sequence, memory=limit)
    assert len(found) >= 5
    for one in found.values():
        assert "\n" not in one.reason
        if one.layout is None:
            assert one.reason
            continue
        check_layout(model_description(model), one.layout, training_cluster(cluster))
        assert peak_memory(model_description(model), one.layout).needed <= limit
        assert (one.layout.global_batch, one.layout.sequence) == (batch, sequence)


def test_a_rule_without_layouts_says_why():
    one = usual("llama3-8b", "h100:1", batch=16)["ZeRO-1"]
    assert (one.layout, one.reason) == (None, "a pipeline takes two devices and two layers")


def test_rules_without_a_limit_are_as_their_guides_say():
    found = usual("llama3-70b", "h100:8x8", memory=1e15, recipe="megatron-fp8")
    degrees = {
        name: (one.layout.tensor, one.layout.pipeline, one.layout.data, one.layout.zero)
        for name, one in found.items()
    }
    assert degrees == {
        "ZeRO-3": (1, 1, 64, 3), "tensor": (8, 1, 8, 1), "Megatron-Bridge's": (8, 4, 2, 1),
        "ZeRO-1": (1, 2, 32, 1), "torchtitan's": (8, 1, 8, 3),
    }  # fmt: skip
    assert {one.reason for one in found.values()} == {""}
    assert {one.layout.recipe.name for one in found.values()} == {"megatron-fp8"}
    guide = "Megatron-Bridge's"
    deepseek = usual("deepseek-v3", "h100:8x128", batch=4096, memory=1e15)[guide].layout
    assert (deepseek.tensor, deepseek.pipeline, deepseek.expert) == (2, 16, 64)
    long = usual("llama3-8b", "h100:8x8", sequence=65536, memory=1e15)[guide].layout
    assert (long.tensor, long.context) == (2, 4)


def test_less_memory_takes_smaller_microbatches_then_recomputation_then_nothing():
    chosen = [
        usual("llama3-8b", "h100:8x8", memory=gib * 2**30)["ZeRO-3"] for gib in (400, 80, 24, 4)
    ]
    sizes = [one.layout and (one.layout.microbatch, sorted(one.layout.recompute)) for one in chosen]
    assert sizes[0] == (8, [])
    assert sizes[1][0] < 8
    assert sizes[1][1] == []
    assert sizes[2][1] == ["full"]
    assert sizes[3] is None
    assert chosen[3].reason.startswith("memory: at least ")
    assert chosen[3].reason.endswith(" of 4.00 GiB")


def test_what_does_not_divide_is_changed_and_said():
    """ZeRO-3 with fewer replicas than devices, experts over fewer devices than the guide's."""
    found = usual("gpt3-175b", "a100:8x128", batch=1536, sequence=2048)["ZeRO-3"]
    assert (found.layout.tensor, found.layout.data, found.layout.zero) == (2, 512, 3)
    assert found.reason.startswith("global_batch: 1536 is not divided by ")
    found = usual("deepseek-v3", "gb200:64x4", batch=2048)["Megatron-Bridge's"]
    assert (found.layout.tensor, found.layout.pipeline, found.layout.expert) == (2, 16, 16)
    assert found.reason.startswith("expert: 64 ")
    none = usual("gpt3-175b", "a100:8x128", batch=7, sequence=2048)["ZeRO-3"]
    assert none.layout is None
    assert none.reason.startswith("global_batch: 7 is not divided by ")


def test_every_recipe_is_a_layout_that_megatron_runs():
    recipes = published_recipes()
    assert len(recipes) > 40
    for recipe in recipes:
        check_layout(recipe.model, recipe.layout, recipe.cluster)
        assert runs("megatron", recipe.layout) is None


def test_a_recipe_is_taken_from_the_nearest_number_of_such_devices():
    model = model_description("llama3.1-405b")
    near = nearest_recipe(model, training_cluster("h100:8x64"), NumberFormat.BF16)
    assert near.devices == "h100:8x128"
    racks = training_cluster("gb200:64x4")
    for precision in (NumberFormat.FP8, NumberFormat.MXFP8, NumberFormat.NVFP4):
        found = nearest_recipe(model, racks, precision)
        assert (found.devices, found.layout.recipe.compute) == ("gb200:64x4", precision)
    fewer = nearest_recipe(model, training_cluster("gb200:64x1"), NumberFormat.NVFP4)
    assert fewer.devices == "gb200:64x2"
    assert nearest_recipe(model, training_cluster("a100:8x64"), NumberFormat.BF16) is None
    own = usual("llama3.1-405b", "h100:8x64", memory=1e15)["NVIDIA's"].layout
    assert (own.tensor, own.context, own.pipeline, own.chunks, own.data) == (8, 2, 8, 8, 4)
    assert own.recipe == Layout().recipe


def test_the_program_writes_what_is_read(tmp_path, monkeypatch):
    """Of two runs of the same choice the faster one, with the fields that its row names."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("published_rows", "published_runs", "recipes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    program = importlib.import_module("recipes")
    for recipe in published_recipes():
        assert layout_of(program.row_of(recipe.layout)) == recipe.layout
    row = {
        "id": "1", "sweep": "bridge:x", "model": "llama3-8b", "seq": "8192", "global_batch": "512",
        "micro_batch": "2", "gpu": "GB200", "gpus": "256", "gpus_per_node": "72", "tp": "2",
        "pp": "4", "vpp": "2", "schedule": "interleaved", "zero": "1 (distributed optimizer)",
        "precision": "BF16", "recompute": "selective (mlp, moe_act)", "iter_s": "3.5",
        "stage_layers": "3 4 4 4 4 4 4 5", "gradient_bytes": "2", "source": "page",
    }  # fmt: skip
    faster = {**row, "id": "2", "iter_s": "2.5", "tp": "1"}
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerows([row, faster])
    out = tmp_path / "recipes.csv"
    monkeypatch.setattr(sys, "argv", ["recipes.py", str(tmp_path / "runs.csv"), "-o", str(out)])
    program.main()
    (found,) = csv.DictReader(out.read_text().splitlines())
    assert (found["model"], found["cluster"], found["seconds"]) == (
        "llama3-8b",
        "gb200:64x4",
        "2.5",
    )
    names = {key: text for key, text in found.items() if key in Layout.__dataclass_fields__}
    layout = layout_of(names)
    assert (layout.tensor, layout.pipeline, layout.chunks, layout.data) == (1, 4, 2, 64)
    assert layout.stage_layers == (3, 4, 4, 4, 4, 4, 4, 5)
    assert layout.recompute == {"mlp", "moe_act"}
    assert layout.recipe.gradient_bytes == 2


def test_the_rivals_of_a_published_job_are_priced_alike(monkeypatch):
    """Its own layout with what was measured, and what the rules choose, in its precision."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("published_rows", "published_runs", "job_sweeps", "job_rivals"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    program = importlib.import_module("job_rivals")
    (job,) = program.jobs("llama3-8b, h100:8x1, fp8")
    planned, *rows = program.rows_of(job, 20.0)
    assert planned["rival"] == program.PLANNED
    assert all(float(row["behind"]) >= 0 for row in rows if row["fits"] and not row["outside"])
    assert rows[0]["rival"] == program.PUBLISHED
    assert [bool(row["measured_s"]) for row in rows] == [True] + [False] * (len(rows) - 1)
    assert float(rows[0]["seconds"]) == pytest.approx(float(rows[0]["measured_s"]), rel=0.1)
    assert {row["rival"] for row in rows} >= {"ZeRO-3 over all devices", "Megatron-Bridge's guide"}
    layouts = [rival.layout for rival in job.rivals if rival.layout is not None]
    assert {(one.recipe, one.overlap, one.graphs) for one in layouts} == {
        (job.base.recipe, job.base.overlap, job.base.graphs)
    }
