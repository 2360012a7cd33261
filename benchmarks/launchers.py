"""Reads exported plans with the launchers that CI does not install, and runs DeepSpeed's.

``pip install --no-deps deepspeed torchtitan vllm`` (and what their imports ask for) beside torch;
a launcher that is missing is named. Nothing is compiled, and no accelerator is needed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
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
    """Give the table to its configuration, and cut the model with it."""
    from torchtitan.config import ParallelismConfig

    table = tomllib.loads(planned("torchtitan"))["parallelism"]
    parts = ParallelismConfig(**table).module_fqns_per_model_part
    assert [name for part in parts for name in part if "." not in name] == ["embed", "head"]
    return f"ParallelismConfig takes the table, of {len(parts)} parts"


def job_configuration() -> str:
    """Have torchtitan and DeepSpeed read layouts of training jobs."""
    from deepspeed.runtime.config import DeepSpeedConfig
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig

    model = stagecut.model_description("llama-3-8b")
    for layout in (
        stagecut.Layout(tensor=2, pipeline=2, data=4, zero=3, global_batch=64, recompute="op"),
        stagecut.Layout(pipeline=2, schedule="zb-h1", global_batch=8, recompute="full"),
        stagecut.Layout(data=4, zero=2, microbatch=2, global_batch=16),
    ):
        scope: dict[str, Any] = {}
        exec(job_files("torchtitan", model, layout)["planned.py"], scope)
        config = SimpleNamespace(
            parallelism=ParallelismConfig(), training=TrainingConfig(), compile=CompileConfig()
        )
        assert scope["planned"](config).parallelism.pipeline_parallel_degree == layout.pipeline
    layout = stagecut.Layout(zero=3, microbatch=2, global_batch=8, offload_optimizer=0.25)
    read = DeepSpeedConfig(json.loads(job_files("deepspeed", model, layout)["deepspeed.json"]))
    assert (read.zero_optimization_stage, read.gradient_accumulation_steps) == (3, 4)
    return "torchtitan's configuration and DeepSpeed's take layouts"


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
    tries: tuple[Callable[[], str], ...] = (torchtitan, job_configuration, maxtext, vllm, deepspeed)
    for attempt in tries:
        name = attempt.__name__
        try:
            known = "" if attempt is job_configuration else f" {version(name)}"
            print(f"{name}{known}: {attempt()}", flush=True)
        except ImportError as missing:  # also a package that one of them imports
            print(f"{name}: not tried: {missing}", flush=True)


if __name__ == "__main__":
    main()
