"""What launchers can run, against what their documentation says of single settings."""

from dataclasses import replace

import pytest

from stagecut.formulations.job.space import job_space
from stagecut.instances import InputError
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.layout import V_SCHEDULES, JobSchedule, Layout
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.job.launchers import LAUNCHERS, runs
from stagecut.instances.job.problem import TrainingJob
from stagecut.runtime.export.registry import LAUNCHERS as EXPORTED

#: One layout that each launcher runs, with as much of what it can do as goes together.
RUN = {
    "megatron": Layout(
        tensor=4, sequence_parallel=True, context=2, pipeline=4, chunks=3, data=2, expert=8,
        expert_tensor=2, zero=1, shard_group=2, schedule="interleaved",
        recompute={"moe_act", "layernorm"}, recipe="megatron-fp8", offload_optimizer=0.5,
    ),
    "torchtitan": Layout(
        tensor=4, sequence_parallel=True, context=2, context_kind="all-gather", pipeline=2,
        data=8, expert=8, zero=3, shard_group=4, schedule="zb-h1", recompute={"op"},
        recipe="fsdp-fp8", software="torchtitan",
    ),
    "deepspeed": Layout(
        tensor=4, pipeline=2, data=4, zero=1, recompute={"full"}, recipe="deepspeed-bf16",
        offload_optimizer=1.0,
    ),
    "bridge": Layout(tensor=2, pipeline=2, data=4, zero=1, recipe="megatron-mxfp8"),
    "accelerate": Layout(tensor=2, data=4, zero=3, recompute={"full"}, recipe="fsdp-bf16"),
    "maxtext": Layout(
        tensor=2, sequence_parallel=True, data=4, zero=3, recompute={"full"}, recipe="fsdp-bf16"
    ),
    "any": Layout(pipeline=2, data=2, zero=2, schedule="zb-h2", recompute={"mlp"}),
    "stagecut": Layout(
        tensor=2, sequence_parallel=True, context=2, context_kind="all-gather", pipeline=3,
        chunks=2, data=2, zero=1, schedule="interleaved", recompute={"full"},
        recompute_layers=(2, 1, 0, 1, 0, 0),
        recipe="fp32",
    ),
}  # fmt: skip


def test_each_launcher_runs_a_layout_of_its_own():
    assert set(RUN) == set(LAUNCHERS)
    assert {name: runs(name, layout) for name, layout in RUN.items()} == dict.fromkeys(RUN)


#: Layouts that a launcher has no setting for, and the first word of the reason.
REFUSED = [
    ("megatron", {"pipeline": 2, "schedule": "gpipe"}, "schedule: gpipe"),
    ("megatron", {"pipeline": 2, "schedule": "zb-h1"}, "schedule: zb-h1"),
    ("megatron", {"pipeline": 2, "data": 2, "zero": 2}, "zero: 2 in a pipeline"),
    ("megatron", {"pipeline": 2, "data": 2, "zero": 3}, "zero: 3 in a pipeline"),
    ("megatron", {"recompute": {"op"}}, "recompute: op"),
    ("megatron", {"recompute": {"full", "mlp"}}, "recompute: full, mlp"),
    ("megatron", {"recompute": {"mlp"}, "recompute_layers": 2}, "recompute_layers: 2"),
    ("megatron", {"tensor": 2, "data": 2, "expert": 4}, "expert: 4 beside tensor 2"),
    ("megatron", {"offload_weights": 0.5}, "offload_weights: 0.5"),
    ("megatron", {"context": 8, "sequence": 2056}, "sequence: 2056 tokens in 16 parts"),
    (
        "torchtitan",
        {"context": 2, "tensor": 2, "sequence_parallel": True, "sequence": 2052},
        "sequence: 2052 tokens in 8 parts",
    ),
    (
        "deepspeed",
        {"context": 8, "context_kind": "all-to-all", "sequence": 2052},
        "sequence: 2052 tokens in 8 parts",
    ),
    ("torchtitan", {"data": 8, "zero": 1}, "zero: 1"),
    ("torchtitan", {"context": 2, "context_kind": "all-to-all"}, "context_kind: all-to-all"),
    ("torchtitan", {"data": 4, "expert_tensor": 2}, "expert_tensor: 2"),
    ("torchtitan", {"recompute": {"mlp"}}, "recompute: mlp"),
    ("torchtitan", {"recompute": {"full"}, "recompute_layers": 1}, "recompute_layers: 1"),
    ("torchtitan", {"recipe": "megatron-fp8-block"}, "recipe: products in fp8-block"),
    ("torchtitan", {"offload_activations": 1.0}, "offload_activations: 1"),
    ("deepspeed", {"pipeline": 2, "data": 2, "zero": 2}, "zero: 2 in a pipeline"),
    ("deepspeed", {"pipeline": 2, "chunks": 2, "schedule": "interleaved"}, "schedule: interl"),
    ("deepspeed", {"tensor": 2, "sequence_parallel": True}, "sequence_parallel: True"),
    ("deepspeed", {"context": 2}, "context_kind: ring"),
    ("deepspeed", {"tensor": 2, "context": 2, "context_kind": "all-to-all"}, "context: 2"),
    ("deepspeed", {"pipeline": 2, "context": 2, "context_kind": "all-to-all"}, "context: 2"),
    ("deepspeed", {"data": 8, "zero": 2, "shard_group": 4}, "shard_group: 4 with ZeRO 2"),
    ("deepspeed", {"tensor": 2, "data": 2, "expert": 4}, "expert: 4 beside tensor 2"),
    ("deepspeed", {"recipe": "megatron-fp8"}, "recipe: products in fp8"),
    ("accelerate", {"data": 2, "zero": 1}, "zero: 1"),
    ("accelerate", {"pipeline": 2, "data": 2, "zero": 3}, "pipeline: 2"),
    ("accelerate", {"data": 2, "expert": 2, "zero": 3}, "expert: 2"),
    ("maxtext", {"pipeline": 2, "schedule": "zb-h1"}, "pipeline: 2"),
    ("maxtext", {"context": 2}, "context_kind: ring"),
    ("stagecut", {"pipeline": 2, "data": 2, "zero": 3}, "zero: 3 in a pipeline"),
    ("stagecut", {"context": 2}, "context_kind: ring"),
    ("stagecut", {"data": 4, "tensor": 2, "expert": 4}, "expert: 4 beside tensor 2"),
    ("stagecut", {"recompute": {"core_attn"}}, "recompute: core_attn"),
    ("stagecut", {"recompute": {"mlp"}, "recompute_layers": 1}, "recompute_layers: 1"),
    (
        "stagecut",
        {"order": ("tensor", "context", "pipeline", "data")},
        "order: tensor, context, p",
    ),
    ("stagecut", {"graphs": "iteration"}, "graphs: iteration"),
    ("stagecut", {"compiled": True}, "compiled: True"),
    ("stagecut", {"data": 4, "expert": 4, "dispatcher": "hierarchical"}, "dispatcher: hier"),
    ("torchtitan", {"data": 4, "expert": 4, "expert_capacity": 1.0}, "expert_capacity: 1"),
    ("accelerate", {"tensor": 2, "data": 2}, "zero: 0 beside tensor or context"),
    (
        "maxtext",
        {"context": 2, "context_kind": "all-gather", "data": 2, "expert": 4, "zero": 3},
        "expert: 4 with data 2",
    ),
]


@pytest.mark.parametrize(("launcher", "changes", "reason"), REFUSED)
def test_what_a_launcher_lacks_is_said_in_one_line(launcher, changes, reason):
    found = runs(launcher, Layout(**{"recipe": LAUNCHERS[launcher].recipe, **changes}))
    assert found is not None
    assert found.startswith(reason), found
    assert "\n" not in found
    assert f"; {launcher} has " in found


def test_parts_of_activations_are_of_whole_layers():
    """Megatron keeps one layer's at least: of 8 layers it can part with 7 of 8."""
    model = shipped_model("llama3-8b")  # of 32 layers
    eight = replace(model, blocks=model.blocks[:8])
    parts = {0.875: None, 0.88: "offload_activations: 0.88; megatron has "}
    for part, refused in parts.items():
        found = runs("megatron", Layout(offload_activations=part), eight)
        assert (found is None) if refused is None else (found or "").startswith(refused)
    job = TrainingJob(global_batch=8, pipeline=1, offload_activations=(0.9, 0.97, 1.0))
    space = job_space(model, training_cluster("h100:8"), job)
    points = [space.layout(point) for point in range(len(space))]
    assert {one.offload_activations for one in points} == {0.9}


@pytest.mark.parametrize(
    ("model", "fields", "reason"),
    [
        ("llama3-8b", {"tensor": 16}, "tensor: 16 does not divide the 8 key and value heads"),
        ("gpt2", {"tensor": 2}, "tensor: 2 does not divide the vocabulary of 50257"),
        ("gemma2-2b", {"context": 2}, "context: 2 with sliding windows"),
    ],
)
def test_what_of_a_model_is_not_divided_is_not_planned(model, fields, reason):
    shipped, job = shipped_model(model), TrainingJob(16, sequence=8192, launcher="stagecut")
    job = replace(job, sequence=1024) if shipped.positions else job
    layout = replace(job.template, **fields)
    assert (runs("stagecut", layout, shipped) or "").startswith(reason)
    assert runs("any", replace(layout, context_kind="ring"), shipped) is None
    space = job_space(shipped, training_cluster("gb200:16"), job)
    for name, value in fields.items():
        assert not any(getattr(space.settings[i], name) >= value for i in set(space.setting))


def test_one_rank_has_no_schedule():
    one = Layout(schedule="gpipe", data=8)
    assert [runs(name, one) for name in LAUNCHERS] == [None] * len(LAUNCHERS)


@pytest.mark.parametrize("name", sorted(set(LAUNCHERS) & set(EXPORTED)))
def test_what_is_exported_is_run(name):
    for schedule in EXPORTED[name].schedules:
        assert JobSchedule(schedule) in LAUNCHERS[name].schedules


def test_the_own_launcher_has_the_schedules_that_it_runs():
    running = pytest.importorskip("stagecut.runtime.execution.job.running")
    layouts = [
        Layout(
            pipeline=2, chunks=1 + (one in (JobSchedule.INTERLEAVED, *V_SCHEDULES)), schedule=one
        )
        for one in LAUNCHERS["stagecut"].schedules
    ]
    assert len(layouts) == len(JobSchedule)
    for layout in layouts:
        assert running.stage_ranks(layout.schedule.value, layout) == layout.stage_ranks


def test_an_unknown_launcher_is_refused():
    with pytest.raises(InputError, match='launcher: "slurm" is not one of megatron, '):
        runs("slurm", Layout())


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_models_with_an_encoder_are_planned_in_pipelines_for_no_launcher(launcher: str) -> None:
    job = TrainingJob(global_batch=8, sequence=512, launcher=launcher)
    space = job_space(shipped_model("t5-large"), training_cluster("h100:4"), job)
    assert (space.pipeline > 1).any() == (launcher == "any")
