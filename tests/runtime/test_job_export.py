"""Files that give layouts to launchers: they parse, and say what the layout says."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import fields, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_config import trainer_config

from stagecut import InputError, Layout, model_description
from stagecut.instances.costs.layout import OptimizerRecipe, Overlap, Recipe
from stagecut.instances.job.launchers import LAUNCHERS
from stagecut.runtime.export.job import JOB_LAUNCHERS, job_files
from stagecut.runtime.schedules import read_csv

DENSE, SPARSE = model_description("llama-3-8b"), model_description("deepseek-v3")


def megatron(layout: Layout, model: Any = DENSE) -> dict[str, str]:
    """Return the arguments of a layout, each with the word behind it."""
    words = shlex.split(job_files("megatron", model, layout)["megatron.sh"], comments=True)
    assert words[0] == f"WORLD_SIZE={layout.devices}"
    assert (words[1], words[-1]) == ("MEGATRON_ARGS=(", ")")
    return dict(pairwise(words[2:]))


def test_megatron_has_the_degrees_and_the_batch() -> None:
    layout = Layout(
        tensor=4, sequence_parallel=True, context=2, context_kind="all-gather", pipeline=2,
        data=2, zero=1, shard_group=2, microbatch=2, global_batch=32, sequence=4096,
        order=("tensor", "context", "pipeline", "data"),
    )  # fmt: skip
    found = megatron(layout)
    for name, value in {
        "tensor-model-parallel-size": 4, "context-parallel-size": 2, "cp-comm-type": "allgather",
        "pipeline-model-parallel-size": 2, "num-layers": 32, "micro-batch-size": 2,
        "global-batch-size": 32, "seq-length": 4096, "num-distributed-optimizer-instances": 2,
    }.items():  # fmt: skip
        assert found[f"--{name}"] == str(value)
    for name in ("sequence-parallel", "use-distributed-optimizer", "bf16", "use-tp-pp-dp-mapping",
                 "overlap-grad-reduce", "overlap-param-gather"):  # fmt: skip
        assert f"--{name}" in found
    for name in (
        "expert-model-parallel-size",
        "pipeline-model-parallel-layout",
        "use-megatron-fsdp",
    ):
        assert f"--{name}" not in found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"recompute": "full"}, {"--recompute-granularity": "full",
          "--recompute-method": "uniform", "--recompute-num-layers": "1"}),
        ({"recompute": "full", "recompute_layers": 3},
         {"--recompute-method": "block", "--recompute-num-layers": "3"}),
        ({"pipeline": 2, "global_batch": 2, "stage_layers": (2, 30), "recompute": "full",
          "recompute_layers": (2, 5)},
         {"--recompute-method": "block", "--recompute-num-layers": "5"}),
        ({"recompute": ("mlp", "layernorm")},
         {"--recompute-granularity": "selective", "--recompute-modules": "layernorm"}),
        ({"chunks": 4, "pipeline": 4, "schedule": "interleaved", "global_batch": 8},
         {"--num-virtual-stages-per-pipeline-rank": "4"}),
        ({"pipeline": 3, "global_batch": 6},
         {"--pipeline-model-parallel-layout": "Et*11|t*11|t*10L"}),
        ({"zero": 2, "data": 2, "global_batch": 2},
         {"--data-parallel-sharding-strategy": "optim_grads"}),
        ({"zero": 3, "data": 2, "global_batch": 2},
         {"--data-parallel-sharding-strategy": "optim_grads_params"}),
        ({"recipe": "megatron-mxfp8"}, {"--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"}),
        ({"offload_optimizer": 0.5, "zero": 1}, {"--optimizer-offload-fraction": "0.5",
          "--use-precision-aware-optimizer": "--optimizer-cpu-offload"}),
        ({"offload_activations": 0.3}, {"--cpu-offloading-num-layers": "10"}),
        ({"offload_activations": 0.9687}, {"--cpu-offloading-num-layers": "31"}),
        ({"graphs": "iteration"}, {"--cuda-graph-impl": "full_iteration",
          "--no-check-for-nan-in-loss-and-grad": ")"}),
        ({"recipe": Recipe("muon", "bf16", optimizer=OptimizerRecipe.MUON)},
         {"--optimizer": "muon"}),
    ],
    ids=str,
)  # fmt: skip
def test_megatron_has_what_is_special(fields: dict[str, Any], expected: dict[str, str]) -> None:
    found = megatron(Layout(**fields))
    assert {name: found[name] for name in expected} == expected


def test_megatron_takes_experts_and_tokens_ahead() -> None:
    layout = Layout(
        pipeline=16, chunks=2, data=8, expert=4, dispatcher="hierarchical", expert_capacity=1.5,
        schedule="interleaved", global_batch=512, mtp_stage=-2,
        stage_layers=(3, *[2] * 29, 0, 0),
    )  # fmt: skip
    found = megatron(layout, SPARSE)
    layout_text = found["--pipeline-model-parallel-layout"]
    assert layout_text == "|".join(["Et*3", *["tt"] * 29, "m", "L"])
    assert found["--mtp-num-layers"] == "1"
    assert found["--expert-model-parallel-size"] == "4"
    assert found["--moe-flex-dispatcher-backend"] == "deepep"
    assert found["--moe-expert-capacity-factor"] == "1.5"
    assert "--moe-grouped-gemm" in found
    core = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout",
        reason="the extra `launchers` is not installed",
    )
    read = core.PipelineParallelLayerLayout.from_str(layout_text, 16)
    read.validate_layer_layout(num_layers=61, mtp_num_layers=1)


def torchtitan(layout: Layout, model: Any = DENSE) -> tuple[Any, dict[str, str]]:
    """Return the configuration after the written function, and all files."""
    files = job_files("torchtitan", model, layout)
    return trainer_config(files["planned.py"]), files


def test_torchtitan_has_the_degrees_and_the_batch() -> None:
    layout = Layout(
        tensor=2, sequence_parallel=True, pipeline=2, data=4, zero=3, shard_group=2, microbatch=2,
        global_batch=32, recompute="full", stage_layers=(15, 17), recipe="fsdp-bf16",
    )  # fmt: skip
    config, _ = torchtitan(layout)
    found = vars(config.parallelism)
    parts = found.pop("module_fqns_per_model_part")
    assert [len(part) for part in parts] == [16, 19]
    assert (parts[0][:2], parts[1][-3:]) == (
        ["tok_embeddings", "layers.0"], ["layers.31", "norm", "lm_head"],
    )  # fmt: skip
    assert found == {
        "data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2,
        "fsdp_reshard_after_forward": "always", "tensor_parallel_degree": 2,
        "enable_sequence_parallel": True, "context_parallel_degree": 1,
        "expert_parallel_degree": 1, "pipeline_parallel_degree": 2,
        "pipeline_parallel_microbatch_size": 2, "pipeline_parallel_schedule": "1F1B",
    }  # fmt: skip
    assert vars(config.training) == {
        "local_batch_size": 8, "global_batch_size": 32, "seq_len": 2048, "dtype": "float32",
        "mixed_precision_param": "bfloat16", "disable_cuda_graphs": True,
    }  # fmt: skip
    assert config.activation_checkpoint == "FullAC"


def test_torchtitan_reads_schedules_without_a_name_from_a_table() -> None:
    layout = Layout(pipeline=2, schedule="zb-h1", global_batch=4, recompute="op", compiled=True)
    config, files = torchtitan(layout)
    assert config.parallelism.pipeline_parallel_schedule_csv == "schedule.csv"
    rows = read_csv(files["schedule.csv"])
    assert (len(rows.actions), rows.microbatches) == (2, 4)
    assert config.activation_checkpoint == "SelectiveAC"
    assert config.compile.enable


def test_torchtitan_accumulates_without_a_pipeline() -> None:
    config, files = torchtitan(Layout(data=2, zero=2, microbatch=2, global_batch=16))
    assert config.training.local_batch_size == 2
    assert config.parallelism.fsdp_reshard_after_forward == "never"
    assert config.activation_checkpoint is None
    assert set(files) == {"planned.py"}


def test_deepspeed_has_the_batch_and_the_states() -> None:
    layout = Layout(
        data=4, zero=3, microbatch=2, global_batch=32, recipe="deepspeed-fp16",
        offload_optimizer=0.25, offload_weights=1.0, recompute="full",
    )  # fmt: skip
    files = job_files("deepspeed", DENSE, layout)
    assert json.loads(files["deepspeed.json"]) == {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {
            "stage": 3, "overlap_comm": True,
            "offload_optimizer": {"device": "cpu", "ratio": 0.25},
            "offload_param": {"device": "cpu"},
        },
        "fp16": {"enabled": True},
        "communication_data_type": "fp16",
        "activation_checkpointing": {
            "partition_activations": False, "cpu_checkpointing": False,
        },
    }  # fmt: skip
    assert set(files) == {"deepspeed.json"}


def test_deepspeed_has_the_stages_of_a_pipeline() -> None:
    layout = Layout(pipeline=2, data=2, stage_layers=(15, 17), global_batch=8)
    text = job_files("deepspeed", DENSE, layout)["planned_pipeline.py"]
    compile(text, "planned_pipeline.py", "exec")
    assert "PARTS = (0, 16, 35)\nPIPELINE, DATA, TENSOR = 2, 2, 1\n" in text
    assert "MICROBATCHES = 4\n" in text


def bridge(layout: Layout, model: Any = DENSE) -> dict[str, Any]:
    """Return what the written function sets, by field."""
    space: dict[str, Any] = {}
    exec(job_files("bridge", model, layout)["planned.py"], space)
    parts = ("model", "train", "ddp", "optimizer", "dataset", "dist", "checkpoint")
    config = SimpleNamespace(**{part: SimpleNamespace() for part in parts})
    assert space["planned"](config) is config
    found = {
        f"{part}.{name}": x for part in parts for name, x in vars(getattr(config, part)).items()
    }
    return found | {"mixed_precision": config.mixed_precision}


def test_bridge_has_fields_of_megatron_core() -> None:
    found = bridge(
        Layout(
            tensor=2, sequence_parallel=True, pipeline=2, context=2, data=2, zero=1,
            microbatch=2, global_batch=32, stage_layers=(15, 17), recompute="mlp",
            recipe="megatron-fp8",
        )
    )  # fmt: skip
    for name, value in {
        "model.tensor_model_parallel_size": 2, "model.sequence_parallel": True,
        "model.pipeline_model_parallel_layout": "Et*15|t*17L", "model.cp_comm_type": "p2p",
        "model.recompute_modules": ["mlp"], "train.global_batch_size": 32,
        "ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True,
        "mixed_precision": "bf16_with_fp8_delayed_scaling_mixed",
    }.items():  # fmt: skip
        assert found[name] == value
    found |= bridge(
        Layout(
            pipeline=16, chunks=2, data=8, expert=4, dispatcher="hierarchical",
            expert_capacity=1.5, schedule="interleaved", global_batch=512,
            stage_layers=(*[2] * 29, 3, 0, 0), recompute="full",
        ),
        SPARSE,
    )  # fmt: skip
    core = pytest.importorskip(
        "megatron.core.transformer.transformer_config",
        reason="the extra `launchers` is not installed",
    )
    ddp = import_module("megatron.core.distributed.distributed_data_parallel_config")
    optimizer = import_module("megatron.core.optimizer.optimizer_config")
    known = {
        "model": core.TransformerConfig,
        "ddp": ddp.DistributedDataParallelConfig,
        "optimizer": optimizer.OptimizerConfig,
    }
    for part, kind in known.items():
        names = {field.name for field in fields(kind)} | {"seq_length"}  # of Bridge's provider
        own = {name.partition(".")[2] for name in found if name.startswith(f"{part}.")}
        assert own <= names


def test_accelerate_and_the_trainer_have_the_degrees() -> None:
    layout = Layout(
        data=8, zero=3, shard_group=4, tensor=2, microbatch=2, global_batch=64,
        recompute="full", recipe="fsdp-bf16",
    )  # fmt: skip
    files = job_files("accelerate", DENSE, layout)
    assert "training_arguments.json" not in files  # the Trainer divides over all processes
    launch = json.loads(files["accelerate.json"])
    degrees = launch["parallelism_config"]
    names = ("dp_replicate", "dp_shard", "tp", "cp")
    assert [degrees[f"parallelism_config_{name}_size"] for name in names] == [2, 4, 2, 1]
    assert launch["fsdp_config"]["fsdp_reshard_after_forward"] is True
    plain = job_files("accelerate", DENSE, Layout(data=8, zero=2, global_batch=32, microbatch=2))
    trainer = json.loads(plain["training_arguments.json"])
    assert trainer["per_device_train_batch_size"] == 2
    assert trainer["gradient_accumulation_steps"] == 2
    assert trainer["fsdp_config"]["reshard_after_forward"] is False
    alone = job_files("accelerate", DENSE, Layout(data=8, global_batch=8))
    assert json.loads(alone["accelerate.json"])["distributed_type"] == "MULTI_GPU"
    assert "\nexport ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4\n" in files["accelerate.sh"]
    ring = Layout(data=4, zero=3, context=2, global_batch=8)
    sent = json.loads(job_files("accelerate", DENSE, ring)["accelerate.json"])
    assert sent["parallelism_config"]["parallelism_config_cp_comm_strategy"] == "alltoall"


def test_accelerate_reads_its_file(tmp_path: Path) -> None:
    config_args = pytest.importorskip(
        "accelerate.commands.config.config_args", reason="the extra `launchers` is not installed"
    )
    from accelerate import ParallelismConfig

    layout = Layout(data=4, zero=3, context=2, context_kind="all-gather", global_batch=8)
    file = tmp_path / "accelerate.json"
    file.write_text(
        job_files("accelerate", DENSE, replace(layout, shard_group=4))["accelerate.json"]
    )
    read = config_args.load_config_from_file(str(file))
    assert (read.num_processes, read.mixed_precision) == (8, "bf16")
    sizes = {
        name.removeprefix("parallelism_config_"): value
        for name, value in read.parallelism_config.items()
        if name.endswith("_size")
    }
    assert ParallelismConfig(**sizes).total_size == layout.devices


def test_maxtext_has_an_axis_for_each_degree() -> None:
    layout = Layout(
        data=8, expert=4, tensor=2, sequence_parallel=True, zero=3, microbatch=2, global_batch=64,
        sequence=4096, recompute="full", recipe="fsdp-bf16",
    )  # fmt: skip
    words = shlex.split(job_files("maxtext", SPARSE, layout)["maxtext.sh"], comments=True)
    found = dict(word.split("=") for word in words[1:-1])
    for name, value in {
        "ici_fsdp_parallelism": "2", "ici_expert_parallelism": "4", "ici_data_parallelism": "1",
        "ici_tensor_sequence_parallelism": "2", "per_device_batch_size": "1",
        "gradient_accumulation_steps": "4", "max_target_length": "4096", "remat_policy": "full",
    }.items():  # fmt: skip
        assert found[name] == value
    axes = [int(x) for name, x in found.items() if name.startswith("ici_")]
    assert math.prod(axes) == layout.devices


def test_a_schedule_is_a_table() -> None:
    layout = Layout(pipeline=2, schedule="zb-h1", global_batch=4)
    rows = read_csv(job_files("csv", DENSE, layout)["schedule.csv"])
    assert (len(rows.actions), rows.microbatches) == (2, 4)


@pytest.mark.parametrize(
    ("schedule", "called"),
    [("interleaved", "Interleaved1F1B"), ("zb-v", "ZBVZeroBubble"), ("dualpipe-v", "DualPipeV")],
)
def test_a_schedule_of_two_chunks_has_a_row_per_rank(schedule: str, called: str) -> None:
    """And torchtitan knows its name."""
    layout = Layout(pipeline=2, chunks=2, schedule=schedule, global_batch=4)
    rows = read_csv(job_files("csv", DENSE, layout)["schedule.csv"])
    held = [set(row[:, 0].tolist()) for row in rows.actions]
    assert held == [set(layout.rank_stages(rank)) for rank in range(2)]
    config, _ = torchtitan(layout)
    assert config.parallelism.pipeline_parallel_schedule == called


@pytest.mark.parametrize(
    ("launcher", "fields", "message"),
    [
        ("vllm", {}, '"vllm": layouts of training jobs are written for accelerate, bridge, csv, '),
        ("accelerate", {"tensor": 2}, "zero: 0 beside tensor or context parallelism"),
        ("accelerate", {"data": 2, "zero": 1, "global_batch": 2},
         "zero: 1; accelerate has 0, 2, 3; plan with --for accelerate"),
        ("csv", {}, "pipeline: 1; there is no schedule"),
        ("maxtext", {"global_batch": 3, "microbatch": 2}, "global_batch: 3"),
        ("accelerate", {"global_batch": 3, "microbatch": 2}, "global_batch: 3"),
        ("megatron", {"order": ("data", "tensor", "context", "pipeline")}, "order: data, tensor"),
        ("megatron", {"offload_activations": 1},
         "offload_activations: 1; megatron has those of all layers but one there: 0.9687 or less"),
        ("megatron", {"offload_activations": 0.99},
         "offload_activations: 0.99; megatron has those of all layers but one there: 0.9687"),
        ("megatron", {"offload_activations": 0.5, "recompute": "full"},
         "offload_activations: 0.5 in a pipeline or with recomputation; megatron has none"),
        ("megatron", {"offload_optimizer": 0.5}, "offload_optimizer: 0.5 with ZeRO 0"),
        ("megatron", {"tensor": 2, "overlap": Overlap(tensor=True)}, "sequence_parallel alone"),
        ("megatron", {"tensor": 3}, "tensor: 3 does not divide 32 heads"),
        ("torchtitan", {"order": ("tensor", "context", "pipeline", "data")},
         "order: tensor, context, pipeline, data; torchtitan has tensor, context, data, pipeline"),
        ("deepspeed", {"graphs": "iteration"}, "graphs: iteration; deepspeed has none"),
        ("maxtext", {"expert_capacity": 1.5}, "maxtext has experts that drop no token"),
        ("accelerate", {"context": 2, "data": 2, "zero": 3, "context_kind": "all-to-all",
          "global_batch": 2}, "context_kind: all-to-all; accelerate has all-gather, ring"),
        ("megatron", {"pipeline": 2, "recompute": "full", "recompute_layers": (1, 2),
          "global_batch": 2}, r"recompute_layers: \[1, 2\]; megatron has one number"),
        ("deepspeed", {"pipeline": 2, "zero": 3, "global_batch": 2}, "zero: 3 in a pipeline"),
        ("megatron", {"global_batch": 3, "microbatch": 2}, "global_batch: 3"),
        ("torchtitan", {"global_batch": 3, "microbatch": 2}, "global_batch: 3"),
        ("torchtitan", {"pipeline": 2, "global_batch": 2, "graphs": "iteration"},
         "graphs: iteration in a pipeline; .* plan with --set graphs=none"),
        ("torchtitan", {"context": 2, "data": 3, "zero": 3, "shard_group": 3, "global_batch": 3},
         "shard_group: 3 is no multiple of context 2"),
        ("deepspeed", {"global_batch": 3, "microbatch": 2}, "global_batch: 3"),
        ("deepspeed", {"data": 4, "zero": 3, "shard_group": 2, "global_batch": 4},
         "shard_group: 2 with ZeRO 3; deepspeed has such groups none"),
        ("deepspeed", {"offload_optimizer": 0.5, "zero": 1}, "offload_optimizer: 0.5 with ZeRO 1"),
        ("deepspeed", {"offload_weights": 0.5, "zero": 3}, "offload_weights: 0.5 with ZeRO 3"),
        ("deepspeed", {"offload_activations": 0.5}, "offload_activations: 0.5"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_launcher_has_no_field_for_is_refused(
    launcher: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        job_files(launcher, DENSE, Layout(**fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("launcher", ["torchtitan", "deepspeed", "accelerate", "maxtext"])
@pytest.mark.parametrize("layers", [0, 32])
def test_a_plan_that_counts_no_layers_or_all_is_taken(launcher: str, layers: int) -> None:
    layout = Layout(data=2, zero=3, global_batch=2, recompute="full", recompute_layers=layers)
    alike = replace(layout, recompute_layers=None, recompute="full" if layers else ())
    assert job_files(launcher, DENSE, layout) == job_files(launcher, DENSE, alike)


def test_deepspeed_divides_experts_and_sequences() -> None:
    experts = Layout(
        data=8, expert=4, zero=2, global_batch=8, dispatcher="hierarchical",
        recipe="deepspeed-bf16",
    )  # fmt: skip
    found = json.loads(job_files("deepspeed", SPARSE, experts)["deepspeed.json"])
    assert found["expert_parallel"] == {
        "enabled": True, "autoep_size": 4, "comm_backend": "deepep",
    }  # fmt: skip
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}
    ulysses = Layout(data=2, context=4, context_kind="all-to-all", global_batch=8)
    found = json.loads(job_files("deepspeed", DENSE, ulysses)["deepspeed.json"])
    assert (found["data_parallel_size"], found["sequence_parallel_size"]) == (2, 4)


def test_predictions_of_tokens_ahead_are_stages_or_refused() -> None:
    layout = Layout(pipeline=2, global_batch=2)
    text = job_files("deepspeed", SPARSE, layout)["planned_pipeline.py"]
    assert text.index("'layers.60'") < text.index("'mtp.0'") < text.index("'norm'")
    with pytest.raises(InputError, match=r"predicts tokens ahead, .* plan with --set pipeline=1"):
        job_files("torchtitan", SPARSE, layout)
    text = job_files("torchtitan", SPARSE, Layout())["planned.py"]
    assert "num_mtp_layers=1" in text


def test_no_launcher_makes_a_stack_of_encoder_and_decoder() -> None:
    model = model_description("t5-3b")
    with pytest.raises(InputError, match="encoder"):
        job_files("megatron", model, Layout())
    with pytest.raises(InputError, match="torchtitan makes no stages; plan with --set pipeline=1"):
        job_files("torchtitan", model, Layout(pipeline=2, global_batch=2))
    assert set(JOB_LAUNCHERS) - {"csv"} == set(LAUNCHERS) - {"any", "stagecut"}
