"""Small models trained on CPUs by exported layouts, with the launchers' own code.

    python benchmarks/launcher_training.py [deepspeed accelerate torchtitan megatron]

Losses of some steps under each layout are compared with those of the launcher on one process. The
files of `job_files` define the training: DeepSpeed's JSON and pipeline, torchtitan's configuration,
Megatron-Core's fields. Launchers that ask for an accelerator are made to run on CPUs:

* torchtitan: the device type is set to ``cpu`` before the first import; a component that keeps the
  losses replaces the component of metrics, which asks an accelerator for its memory; attention is
  torch's; the trainer's steps are called one by one, since after the first `train` passes an
  accelerator's number to a barrier; gradients are added up and then divided, since gloo has no
  reduction that does both.
* Megatron-Core: tensors that it makes on ``cuda`` are made on CPUs, and no random states are kept.
* Accelerate: it is told that its processes have GPUs, since only then does it take FSDP.

If a launcher cannot run a layout on CPUs, the row has the line of its code that ends the run.
Writes `results/launchers.csv`, where rows of other layouts and launchers stay.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from results import write
from torch import Tensor, multiprocessing, nn
from torch.overrides import TorchFunctionMode

from stagecut import InputError, Layout
from stagecut.instances.costs.hugging_face import from_config
from stagecut.runtime.export.job import job_files
from stagecut.runtime.export.megatron import bridge_fields

STEPS, SEQUENCE, GLOBAL_BATCH, WIDTH = 3, 16, 8, 16
#: Layers and vocabulary of the models; torchtitan's debug model has its own.
LAYERS, WORDS = 4, 64
TITAN_LAYERS, TITAN_WORDS = 6, 2048

#: Layouts by launcher: what is changed of a layout on one process.
LAYOUTS: Mapping[str, list[dict[str, Any]]] = {
    "deepspeed": [
        *({"data": 2, "zero": zero, "microbatch": 2} for zero in (1, 2, 3)),
        {"pipeline": 2},
        {"pipeline": 2, "zero": 1, "stage_layers": (1, 3)},
        {"data": 2, "zero": 3, "offload_optimizer": 1.0},
    ],
    "accelerate": [
        {"data": 2},
        *({"data": 2, "zero": zero, "microbatch": 2} for zero in (2, 3)),
        {"data": 2, "zero": 3, "recompute": "full"},
    ],
    "torchtitan": [
        {"data": 2, "zero": 3, "recompute": "full"},
        {"tensor": 2, "sequence_parallel": True},
        {"pipeline": 2, "chunks": 2, "schedule": "interleaved", "stage_layers": (1, 2, 2, 1)},
        {"pipeline": 2, "schedule": "zb-h1"},
        {"pipeline": 2, "data": 2, "zero": 2, "stage_layers": (4, 2)},
        {"context": 2, "context_kind": "all-gather", "zero": 3},
    ],
    "megatron": [
        {"tensor": 2},
        {"pipeline": 2, "stage_layers": (1, 3)},
        {"pipeline": 2, "chunks": 2, "schedule": "interleaved"},
        {"tensor": 2, "sequence_parallel": True},
        {"pipeline": 2, "recompute": "full"},
    ],
}
PACKAGES = {**{name: name for name in LAYOUTS}, "megatron": "megatron-core"}
SCRIPT = "accelerate.sh"


def layout_of(changes: Mapping[str, Any]) -> Layout:
    """Return a layout in numbers of 32 bits."""
    usual = {"global_batch": GLOBAL_BATCH, "sequence": SEQUENCE, "recipe": "fp32"}
    return Layout(**(usual | dict(changes)))


def description(layers: int, words: int) -> Any:
    """Return a Llama of that many layers and words."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "vocab_size": words}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": layers}
    return from_config({"model_type": "llama", **sizes, **heads}, name="small")


def tokens(step: int, words: int) -> tuple[Tensor, Tensor]:
    """Return a batch and what follows each of its tokens."""
    generator = torch.Generator().manual_seed(step)
    drawn = torch.randint(words, (GLOBAL_BATCH, SEQUENCE + 1), generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


# DeepSpeed


def deepspeed(layout: Layout, _folder: Path) -> list[float]:
    """Return the losses of layers of products and tanh."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed as launcher

    launcher.ops.__compatible_ops__.clear()  # else it compiles messages in shared memory
    launcher.init_distributed("gloo")
    files = job_files("deepspeed", description(LAYERS, WORDS), layout)
    config = json.loads(files["deepspeed.json"])
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Embedding(WORDS, WIDTH)]
    layers += [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)]

    def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    if layout.pipeline > 1:
        scope: dict[str, Any] = {"__name__": "planned"}
        exec(files["planned_pipeline.py"], scope)
        net = scope["pipeline"](layers, loss_fn=loss_of)
    else:
        net = nn.Sequential(*layers)
    offloaded = "offload_optimizer" in config["zero_optimization"]
    adam = launcher.ops.adam.DeepSpeedCPUAdam if offloaded else torch.optim.AdamW
    engine, *_ = launcher.initialize(
        model=net, optimizer=adam(net.parameters(), lr=0.01), config=config
    )
    rank = engine.mpu.get_data_parallel_rank() if layout.pipeline > 1 else dist.get_rank()
    losses = []
    for step in range(STEPS):
        parts = [
            whole.chunk(layout.data)[rank].split(layout.microbatch) for whole in tokens(step, WORDS)
        ]
        if layout.pipeline > 1:
            mean = engine.train_batch(iter(zip(*parts, strict=True)))
        else:
            found = []
            for x, wanted in zip(*parts, strict=True):
                found.append(loss_of(engine(x), wanted))
                engine.backward(found[-1])
                engine.step()
            mean = torch.stack(found).detach().mean()
            dist.all_reduce(mean)
            mean /= layout.data
        losses.append(float(mean))
    return losses


# Accelerate


class Stack(nn.Module):
    """Embedding, layers of products and tanh, and a head."""

    _no_split_modules = ("Sequential",)

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def accelerate(layout: Layout, folder: Path) -> list[float]:
    """Return the losses of a stack under the environment that its command makes of the files."""
    from accelerate import Accelerator, PartialState
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import DistributedType
    from accelerate.utils.launch import prepare_multi_gpu_env

    files = job_files("accelerate", description(LAYERS, WORDS), layout)
    rank = int(os.environ["RANK"])
    file = folder / str(rank) / "accelerate.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(files["accelerate.json"])
    given = launch_command_parser().parse_args(["--config_file", str(file), "train.py"])
    made = prepare_multi_gpu_env(_validate_launch_command(given)[0])
    prefixes = ("ACCELERATE_", "FSDP_", "PARALLELISM_")
    os.environ.update({key: made[key] for key in made if key.startswith(prefixes)})
    (steps,) = re.findall(r"export (ACCELERATE_GRADIENT_ACCUMULATION_STEPS)=(\d+)", files[SCRIPT])
    os.environ.update(dict([steps]))
    PartialState(cpu=True)
    if layout.zero:  # of CPUs it makes DistributedDataParallel, whatever is asked
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    launcher = Accelerator()
    torch.manual_seed(0)
    net = Stack()
    net, optimizer = launcher.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01))
    losses = []
    for step in range(STEPS):
        own = [whole.chunk(layout.data)[rank] for whole in tokens(step, WORDS)]
        found = []
        for x, wanted in zip(*(part.split(layout.microbatch) for part in own), strict=True):
            with launcher.accumulate(net):
                loss = nn.functional.cross_entropy(net(x).flatten(0, 1), wanted.flatten())
                launcher.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            found.append(loss.detach())
        losses.append(float(launcher.reduce(torch.stack(found).mean(), "mean")))
    return losses


# torchtitan


def torchtitan(layout: Layout, folder: Path) -> list[float]:
    """Return the losses of its debug model of Llama 3, from the weights of its seed checkpoint."""
    torch._utils._get_available_device_type = lambda: "cpu"  # type: ignore[attr-defined]
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel_ce_loss

    config = llama3_debugmodel_ce_loss()
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    os.chdir(folder)
    files = job_files("torchtitan", description(TITAN_LAYERS, TITAN_WORDS), layout)
    rank = int(os.environ["RANK"])
    for name, text in files.items():
        own = folder / f"{rank}-{name}"
        own.write_text(text.replace("schedule.csv", f"{rank}-schedule.csv"))
    scope: dict[str, Any] = {}
    exec((folder / f"{rank}-planned.py").read_text(), scope)
    config = scope["planned"](config)
    config.dataloader, config.tokenizer, config.metrics = _components()
    config.training.steps = STEPS
    config.validator.enable = False
    config.debug.enable_structured_logging = False
    config.dump_folder = str(folder / "run")
    config.checkpoint.enable = True
    seed = folder / "run" / "checkpoint" / "step-0"
    config.checkpoint.create_seed_checkpoint = not seed.exists()
    config.__post_init__()
    trainer = config.build()
    if not seed.exists():
        trainer.checkpointer.save(curr_step=0, last_step=True)
        trainer.close()
        return []
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    trainer.checkpointer.load(step=0)
    batches = trainer.batch_generator(trainer.dataloader)
    for trainer.step in range(1, STEPS + 1):
        trainer.train_step(batches)
    return list(trainer.metrics_processor.losses)


def _components() -> tuple[Any, Any, Any]:
    """Return the configurations of torchtitan's components that this script has its own of."""
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.config import Configurable

    class Batches(BaseDataLoader):  # type: ignore[misc]
        """The same batches for any number of ranks."""

        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):  # type: ignore[misc]
            pass

        def __init__(
            self, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any
        ) -> None:
            self.share = (dp_world_size, dp_rank, local_batch_size)

        def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
            ranks, rank, size = self.share
            for step in range(STEPS):
                own = [whole.chunk(ranks)[rank].split(size) for whole in tokens(step, TITAN_WORDS)]
                yield from (({"input": x}, wanted) for x, wanted in zip(*own, strict=True))

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, _state: dict[str, Any]) -> None:
            pass

    class Words(BaseTokenizer):  # type: ignore[misc]
        """Tokens are numbers."""

        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):  # type: ignore[misc]
            pass

        def __init__(self, **_: Any) -> None:
            super().__init__()

        def encode(self, text: str) -> list[int]:
            return [int(word) for word in text.split()]

        def decode(self, numbers: list[int]) -> str:
            return " ".join(map(str, numbers))

        def get_vocab_size(self) -> int:
            return TITAN_WORDS

    class Losses(Configurable):  # type: ignore[misc]
        """The loss of each step."""

        @dataclass(kw_only=True, slots=True)
        class Config(Configurable.Config):  # type: ignore[misc]
            pass

        def __init__(self, **_: Any) -> None:
            self.losses: list[float] = []
            self.num_flops_per_token = self.ntokens_since_last_log = 0
            self.data_loading_times: list[float] = []
            self.color = SimpleNamespace(blue="", red="", yellow="", reset="")
            peak = SimpleNamespace(max_reserved_gib=0.0, max_reserved_pct=0.0)
            self.device_memory_monitor = SimpleNamespace(
                device_name="cpu", get_peak_stats=lambda: peak
            )

        def should_log(self, _step: int) -> bool:
            return True

        def log(self, _step: int, mean: float, *_: Any, **__: Any) -> None:
            self.losses.append(mean)

        def close(self) -> None:
            pass

    return Batches.Config(), Words.Config(), Losses.Config()


# Megatron-Core


class OnCpus(TorchFunctionMode):
    """Makes tensors on CPUs that are asked for on ``cuda``."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        options = dict(kwargs or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return func(*args, **options)


def megatron(layout: Layout, _folder: Path) -> list[float]:
    """Return the losses of a GPT with its local layers, under its own schedules of passes."""
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import initialize_rng_tracker
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    known = {field.name for field in fields(TransformerConfig)}
    said = dict(bridge_fields(description(LAYERS, WORDS), layout))
    planned = {
        name.removeprefix("model."): value
        for name, value in said.items()
        if name.removeprefix("model.") in known
    }
    dist.init_process_group("gloo")
    chunks = layout.chunks if layout.chunks > 1 else None
    parallel_state.initialize_model_parallel(layout.tensor, layout.pipeline, chunks)
    initialize_rng_tracker(inference_rng_tracker=True)
    plain = ("bias_dropout_fusion", "masked_softmax_fusion", "bias_activation_fusion")
    plain += ("persist_layer_norm", "gradient_accumulation_fusion", "batch_p2p_comm")
    config = TransformerConfig(
        **planned, **dict.fromkeys(plain, False), hidden_size=WIDTH, num_attention_heads=4,
        use_cpu_initialization=True, pipeline_dtype=torch.float32, hidden_dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    parts = []
    losses = []
    with OnCpus():
        for chunk in range(layout.chunks):
            ends = {"ignore_virtual": False, "vp_stage": chunk if chunks else None}
            part = GPTModel(
                config, get_gpt_layer_local_spec(), WORDS, SEQUENCE,
                pre_process=parallel_state.is_pipeline_first_stage(**ends),
                post_process=parallel_state.is_pipeline_last_stage(**ends),
                share_embeddings_and_output_weights=False, vp_stage=ends["vp_stage"],
            )  # fmt: skip
            _fill(part, get_transformer_layer_offset(config, ends["vp_stage"]), layout.tensor)
            parts.append(part)
        optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)
        for step in range(STEPS):
            batch = list(zip(*(x.split(1) for x in tokens(step, WORDS)), strict=True))
            optimizer.zero_grad()
            made = get_forward_backward_func()(
                forward_step_func=_megatron_pass,
                data_iterator=[iter(batch) for _ in parts] if chunks else iter(batch),
                model=parts, num_microbatches=len(batch), seq_length=SEQUENCE,
                micro_batch_size=1, forward_only=False,
            )  # fmt: skip
            optimizer.step()
            losses += [sum(float(one["loss"]) for one in made) / len(made)] if made else []
    return losses


def _megatron_pass(batches: Any, part: Any, *_: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Return what a stage makes of the next microbatch, and what makes the loss of it."""
    x, wanted = next(batches)
    ahead = torch.ones(SEQUENCE, SEQUENCE).tril()[None, None] < 0.5
    made = part(x, torch.arange(SEQUENCE)[None], ahead, labels=wanted)
    return made, lambda found: (found.mean(), {"loss": found.detach().mean()})


def _fill(part: nn.Module, first: int, tensor: int) -> None:
    """Fill parameters by their names in the whole model, each rank with its part of them."""
    from megatron.core import parallel_state

    for name, parameter in part.named_parameters():
        words = name.split(".")
        if "layers" in words:
            at = words.index("layers") + 1
            words[at] = str(int(words[at]) + first)
        split = getattr(parameter, "tensor_model_parallel", False)
        axis = parameter.partition_dim if split else 0
        shape = list(parameter.shape)
        shape[axis] *= tensor if split else 1
        generator = torch.Generator().manual_seed(zlib.crc32(".".join(words).encode()))
        whole = torch.randn(shape, generator=generator) * 0.2
        own = whole.chunk(tensor, axis)[parallel_state.get_tensor_model_parallel_rank()]
        parameter.data.copy_(own if split else whole)


# Processes

WORKS: Mapping[str, Callable[[Layout, Path], list[float]]] = {
    "deepspeed": deepspeed, "accelerate": accelerate, "torchtitan": torchtitan,
    "megatron": megatron,
}  # fmt: skip


def _rank(rank: int, world: int, port: int, name: str, layout: Layout, folder: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(world))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    try:
        losses = WORKS[name](layout, folder)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)
        inside = [one for one in frame if "site-packages" in one.filename] or list(frame)
        package = [one for one in inside if f"/{name}/" in one.filename] or inside
        file = package[-1].filename.rpartition("site-packages/")[2]
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        (folder / f"{rank}.stop").write_text(f"{file}:{package[-1].lineno}: {reason}")
        raise
    (folder / f"{rank}.json").write_text(json.dumps(losses))
    if dist.is_initialized():  # else a process of one rank can end in an abort
        dist.destroy_process_group()


def losses_of(name: str, layout: Layout, folder: Path) -> tuple[list[float], str]:
    """Return the losses of a training's steps, and where the launcher stops, if it does."""
    for old in (*folder.glob("*.json"), *folder.glob("*.stop")):
        old.unlink()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = (layout.devices, port, name, layout, folder)
    try:
        multiprocessing.spawn(_rank, given, nprocs=layout.devices)
    except (multiprocessing.ProcessRaisedException, multiprocessing.ProcessExitedException) as end:
        stops = [file.read_text() for file in sorted(folder.glob("*.stop"))]
        told = [stop for stop in stops if "Connection closed" not in stop] or stops
        return [], told[0] if told else str(end).strip().splitlines()[-1]
    # torchtitan's ranks without the last stage have no loss, and say -1
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return next((row for row in rows if row and row[0] >= 0), []), ""


def difference(losses: list[float], wanted: list[float]) -> float:
    """Return the largest difference of a step's losses."""
    return max(abs(a - b) for a, b in zip(losses, wanted, strict=True))


def rows_of(name: str) -> Iterator[dict[str, str]]:
    """Yield a row for each layout of a launcher."""
    with TemporaryDirectory() as folder:
        if name == "torchtitan":  # its first run writes the weights that the others read
            losses_of(name, layout_of({}), Path(folder))
        wanted, stop = losses_of(name, layout_of({}), Path(folder))
        if not wanted:
            raise SystemExit(f"{name} on one process: {stop}")
        for changes in LAYOUTS[name]:
            layout = layout_of(changes)
            losses, stop = losses_of(name, layout, Path(folder))
            row = {
                "launcher": name,
                "package": f"{PACKAGES[name]} {version(PACKAGES[name])}",
                "layout": ", ".join(f"{key} {value}" for key, value in changes.items()),
                "processes": str(layout.devices),
                "steps": str(len(losses)),
                "difference": f"{difference(losses, wanted):.1e}" if losses else "",
                "stops_at": stop,
            }
            print(*row.values(), sep=" | ", flush=True)
            yield row


def main() -> None:
    """Write the rows of the launchers that are installed, each when it is there."""
    found = False
    for name in sys.argv[1:] or LAYOUTS:
        try:
            version(PACKAGES[name])
        except PackageNotFoundError:
            print(f"{name}: not tried: {PACKAGES[name]} is not installed", flush=True)
            continue
        for row in rows_of(name):
            write("launchers", [row], "0", keys=("launcher", "layout"))
            found = True
    if not found:
        raise InputError(f"no launcher is installed: pip install {' '.join(PACKAGES.values())}")


if __name__ == "__main__":
    main()
