"""Exported plans read by the launchers that CI does not install, and run by DeepSpeed.

``pip install --no-deps deepspeed torchtitan vllm`` (and what their imports ask for) beside torch;
missing launchers are named. Nothing is compiled, and no accelerator is needed. Megatron-LM is read
from a checkout that MEGATRON_LM names, as if an H100 and Transformer Engine were there.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import socket
import sys
import typing
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import typing_extensions
from torch import multiprocessing, nn

import stagecut
from stagecut.runtime.export.job import job_files
from stagecut.runtime.export.registry import launcher_file

WIDTH, LAYERS, MICROBATCHES = 16, 6, 4


class Net(nn.Module):
    """An input layer, a list of layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        made: torch.Tensor = self.head(x)
        return made


def planned(launcher: str) -> str:
    """Return what is exported of a plan on two devices whose links cost nothing."""
    model, inputs = Net().eval(), (torch.zeros(2, WIDTH),)
    workload = stagecut.profile(model, inputs, estimate="h100", depth=2).workload
    kind = stagecut.DeviceKind("process", 2, times="accelerator", link=stagecut.Link(0.0, 1e18))
    problem = stagecut.Throughput("contiguous")
    plan = stagecut.solve(workload, stagecut.Cluster((kind,)), problem).plan
    assert plan is not None
    return launcher_file(workload, plan, launcher)[0]


def deepspeed() -> str:
    """Train a batch on two processes, and compare its loss with that of the model alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_deepspeed_rank, (port, planned("deepspeed")), nprocs=2)
    return "two processes trained a batch; the loss is that of one process"


def _deepspeed_rank(rank: int, port: int, text: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "DS_ACCELERATOR": "cpu"}
    torch.set_num_threads(1)
    import deepspeed

    deepspeed.ops.__compatible_ops__.clear()  # else it compiles messages in shared memory
    deepspeed.init_distributed("gloo")
    scope: dict[str, Any] = {"__name__": "planned"}
    exec(text, scope)
    torch.manual_seed(0)
    model = Net()
    batch = [(torch.randn(2, WIDTH), torch.randn(2, WIDTH)) for _ in range(MICROBATCHES)]
    losses = [nn.functional.mse_loss(model(x), y) for x, y in batch]
    layers = [model.get_submodule(name) for name in scope["LAYERS"]]
    net = scope["pipeline"](layers, loss_fn=nn.functional.mse_loss)
    assert net.parts == list(scope["PARTS"])
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": MICROBATCHES,
        },
    )
    loss = engine.train_batch(iter(batch))
    torch.testing.assert_close(loss.reshape(()), torch.stack(losses).mean().detach())


def torchtitan() -> str:
    """Run the written function on its configuration."""
    parts = titan_config(planned("torchtitan")).parallelism.module_fqns_per_model_part
    assert [name for part in parts for name in part if "." not in name] == ["embed", "head"]
    return f"its configuration takes what is set, of {len(parts)} parts"


def titan_config(text: str) -> Any:
    """Return torchtitan's own configuration after a module's function."""
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig

    scope: dict[str, Any] = {}
    exec(text, scope)
    return scope["planned"](
        SimpleNamespace(
            parallelism=ParallelismConfig(), training=TrainingConfig(), compile=CompileConfig()
        )
    )


def job_configuration() -> str:
    """Have torchtitan and DeepSpeed read layouts of training jobs."""
    from deepspeed.runtime.config import DeepSpeedConfig

    model = stagecut.model_description("llama-3-8b")
    for layout in (
        stagecut.Layout(tensor=2, pipeline=2, data=4, zero=3, global_batch=64, recompute="op"),
        stagecut.Layout(pipeline=2, schedule="zb-h1", global_batch=8, recompute="full"),
        stagecut.Layout(data=4, zero=2, microbatch=2, global_batch=16),
    ):
        config = titan_config(job_files("torchtitan", model, layout)["planned.py"])
        assert config.parallelism.pipeline_parallel_degree == layout.pipeline
    layout = stagecut.Layout(zero=3, microbatch=2, global_batch=8, offload_optimizer=0.25)
    read = DeepSpeedConfig(json.loads(job_files("deepspeed", model, layout)["deepspeed.json"]))
    assert (read.zero_optimization_stage, read.gradient_accumulation_steps) == (3, 4)
    return "torchtitan's configuration and DeepSpeed's take layouts"


#: Layouts for Megatron-LM: of a dense model, and of a mixture of experts.
DENSE: tuple[dict[str, Any], ...] = (
    {"tensor": 2, "sequence_parallel": True, "data": 2, "zero": 1},
    *({"context": 2, "context_kind": kind} for kind in ("ring", "all-gather", "all-to-all")),
    {"pipeline": 4, "chunks": 2, "schedule": "interleaved"},
    {"pipeline": 3, "stage_layers": (10, 11, 11)},
    {"pipeline": 2, "data": 2, "order": ("tensor", "context", "pipeline", "data")},
    *({"data": 4, "zero": zero, "shard_group": 2} for zero in (1, 2, 3)),
    *({"recipe": f"megatron-{name}"} for name in ("fp16", "fp8", "fp8-block", "mxfp8")),
    {"data": 2, "zero": 1, "offload_optimizer": 0.5},
    *({"graphs": graphs} for graphs in ("modules", "iteration")),
    {"recompute": "full", "recompute_layers": 3},
    {"recompute": ("core_attn", "layernorm", "mlp")},
)
SPARSE: tuple[dict[str, Any], ...] = (
    {"data": 8, "expert": 8, "pipeline": 2, "zero": 1},
    {"data": 8, "expert": 8, "zero": 3, "dispatcher": "hierarchical"},
    {"data": 8, "expert": 8, "expert_capacity": 1.5},
    {"data": 4, "tensor": 2, "sequence_parallel": True, "expert": 4, "expert_tensor": 2},
    {"data": 8, "expert": 8, "recompute": ("moe_act", "layernorm")},
)


def megatron_lm() -> str:
    """Have Megatron-LM parse and check arguments, in a checkout that MEGATRON_LM names."""
    if "MEGATRON_LM" not in os.environ:
        raise ImportError("MEGATRON_LM names no checkout")
    sys.path.insert(0, os.environ["MEGATRON_LM"])
    typing.override = typing_extensions.override  # type: ignore[misc]  # of Python 3.12
    import megatron.core.utils

    megatron.core.utils.is_te_min_version = lambda *_args, **_options: True  # of no machine
    known = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    torch.cuda.get_device_properties = lambda *_args, **_options: known
    torch.cuda.get_device_capability = lambda *_args, **_options: (known.major, known.minor)
    from megatron.training.arguments import (
        core_transformer_config_from_args,
        parse_args,
        validate_args,
    )

    count = 0
    for name, layouts in (("llama-3-8b", DENSE), ("mixtral-8x7b", SPARSE)):
        for fields in layouts:
            layout = stagecut.Layout(**{"global_batch": 24, **fields})
            files = job_files("megatron", stagecut.model_description(name), layout)
            words = shlex.split(files["megatron.sh"], comments=True)
            of_model = "--num-experts 8 --moe-router-topk 2" if name.startswith("mixtral") else ""
            sys.argv = ["pretrain_gpt.py", *MODEL.split(), *of_model.split(), *words[2:-1]]
            os.environ |= {"WORLD_SIZE": str(layout.devices), "RANK": "0"}
            if layout.tensor > 1 or layout.context > 1:
                os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
            with redirect_stdout(io.StringIO()):
                core_transformer_config_from_args(validate_args(parse_args()))
            os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
            count += 1
    return f"validate_args and the configuration of the model take {count} layouts"


#: Arguments that are a user's.
MODEL = (
    "--hidden-size 4096 --num-attention-heads 32 --max-position-embeddings 8192 --lr 1e-4 "
    "--train-iters 9 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000 "
    "--position-embedding-type rope --no-rope-fusion --disable-bias-linear"
)


def maxtext() -> str:
    """Look for what is set of layouts in its base configuration, without its import of JAX."""
    found = find_spec("maxtext")
    if found is None or found.origin is None:
        raise ImportError("No module named 'maxtext'")
    base = Path(found.origin).with_name("configs") / "base.yml"
    known = set(re.findall(r"^(\w+):", base.read_text(encoding="utf-8"), re.MULTILINE))
    model = stagecut.model_description("deepseek-v3")
    for layout in (
        stagecut.Layout(
            data=8, expert=4, tensor=2, sequence_parallel=True, zero=3, global_batch=64,
            recipe="fsdp-bf16",
        ),
        stagecut.Layout(data=4, tensor=2, zero=1, global_batch=64, recompute="full"),
        stagecut.Layout(data=2, context=2, context_kind="all-gather", global_batch=64),
    ):  # fmt: skip
        words = shlex.split(job_files("maxtext", model, layout)["maxtext.sh"], comments=True)
        names = {word.partition("=")[0] for word in words[1:-1]}
        assert names <= known, names - known
    return "its base.yml has what is set of three layouts"


def vllm() -> str:
    """Ask it for the layers of each rank."""
    (line,) = (x for x in planned("vllm").splitlines() if "PARTITION=" in x)
    partition = line.partition("=")[2]
    os.environ["VLLM_PP_LAYER_PARTITION"] = partition
    from vllm.distributed.utils import get_pp_indices

    found = [get_pp_indices(LAYERS, rank, 2) for rank in range(2)]
    first = int(partition.split(",")[0])
    assert found == [(0, first), (first, LAYERS)]
    return f"get_pp_indices gives {found}"


def main() -> None:
    """Print a line per launcher."""
    tries: tuple[Callable[[], str], ...] = (
        torchtitan, job_configuration, maxtext, vllm, deepspeed, megatron_lm,
    )  # fmt: skip
    for attempt in tries:
        name = attempt.__name__
        try:
            known = "" if attempt in (job_configuration, megatron_lm) else f" {version(name)}"
            print(f"{name}{known}: {attempt()}", flush=True)
        except ImportError as missing:  # also a package that one of them imports
            print(f"{name}: not tried: {missing}", flush=True)


if __name__ == "__main__":
    main()
