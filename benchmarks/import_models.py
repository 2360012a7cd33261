"""Networks from `transformers` (random weights) and a U-Net, imported, counted, planned, measured.

Prints three Markdown tables:

* *Counts*: nodes, edges, parameters, FLOPs against FlopCounterMode, saved bytes against
  saved-tensor hooks, CPU seconds to import, and the verified plan on 4 devices;
* *Times*: the sum of operator times against the whole model, before and after correction, on one
  thread;
* *Kept*: for all models of `models.py` and `more_models.py` whose library is installed, in
  training: whether the profile has all parameters and costs the same on `meta`, the operators of
  ``--tensors`` and those without a rule, or why the model is refused, and whether the model is
  afterwards what it was before.
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from models import FACTORIES
from more_models import MORE
from torch import nn
from torch.utils._pytree import tree_leaves

import stagecut
from stagecut import InputError
from stagecut.instances.pytorch.profile import Profile, profile
from stagecut.instances.pytorch.tensors import tensor_program

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from torch_counts import counted_by_torch, saved_bytes

Made = tuple[nn.Module, dict[str, Any]]
WIDTH, LAYERS, HEADS, WORDS, LENGTH = 256, 6, 4, 1000, 128


def ids(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, WORDS, (2, length))


def padded() -> dict[str, torch.Tensor]:
    """A batch with padding: with a mask, `transformers` runs what it traces.

    Without one it skips the mask when run, but not when traced, and repeats the keys.
    """
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, -8:] = 0
    return {"input_ids": ids(), "attention_mask": mask}


def bert() -> Made:
    config = hf.BertConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
    )  # fmt: skip
    return hf.BertForSequenceClassification(config), {"input_ids": ids()}


def gpt2() -> Made:
    config = hf.GPT2Config(
        vocab_size=WORDS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, use_cache=False,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config), {"input_ids": ids()}


def llama() -> Made:
    config = hf.LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config), padded()


def mixtral() -> Made:
    config = hf.MixtralConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, num_local_experts=4, use_cache=False,
    )  # fmt: skip
    return hf.MixtralForCausalLM(config), padded()


def t5() -> Made:
    config = hf.T5Config(
        vocab_size=WORDS, d_model=WIDTH, d_kv=64, d_ff=4 * WIDTH, num_layers=LAYERS,
        num_heads=HEADS, use_cache=False,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config), {"input_ids": ids(), "decoder_input_ids": ids()}


def vit() -> Made:
    config = hf.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, image_size=160,
    )  # fmt: skip
    return hf.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 160, 160)}


def resnet() -> Made:
    config = hf.ResNetConfig(
        embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[3, 4, 6, 3]
    )
    return hf.ResNetForImageClassification(config), {"pixel_values": torch.randn(2, 3, 128, 128)}


def whisper() -> Made:
    config = hf.WhisperConfig(
        vocab_size=WORDS, d_model=WIDTH, encoder_layers=4, decoder_layers=4,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH, max_source_positions=200, use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(2, 80, 400), "decoder_input_ids": ids(64)}
    return hf.WhisperForConditionalGeneration(config), inputs


class Twice(nn.Sequential):
    """Two convolutions of a U-Net."""

    def __init__(self, before: int, after: int) -> None:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Four levels down and up, joined by long skips."""

    def __init__(self, base: int = 32) -> None:
        super().__init__()
        sizes = [base * 2**level for level in range(4)]
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.middle = Twice(sizes[-1], sizes[-1])
        self.up = nn.ModuleList(Twice(2 * a, max(base, a // 2)) for a in reversed(sizes))
        self.head = nn.Conv2d(base, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skips.pop()], 1))
        return self.head(x)


def unet() -> Made:
    return UNet(), {"x": torch.randn(2, 3, 64, 64)}


MODELS: tuple[Callable[[], Made], ...] = (
    bert, gpt2, llama, mixtral, t5, vit, resnet, whisper, unet,
)  # fmt: skip


def planned(done: Profile, method: str, seconds: float) -> str:
    """Return the verified objective on 4 devices, or what is wrong."""
    workload = done.workload
    assert workload.cluster is not None
    result = stagecut.solve(
        workload,
        workload.cluster.with_counts(4, 0),
        stagecut.Throughput(split="contiguous"),
        method=method,
        limits=stagecut.Limits(seconds=seconds, gap=0.01),
    )
    if result.plan is None:
        return result.status
    stagecut.verify(workload, result.plan)
    total = float(workload.times["accelerator"].sum())
    return f"{total / result.objective:.2f}×"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--method", default="greedy")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each plan")
    parser.add_argument("--table", choices=("counts", "times", "kept", "all"), default="all")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    only = {name for name in options.only.split(",") if name}
    chosen = [build for build in MODELS if not only or build.__name__ in only]
    for table, head, row in (("counts", COUNTED, count), ("times", MEASURED, measure)):
        if options.table not in (table, "all"):
            continue
        print(head)
        for build in chosen:
            for training in (False, True):
                row(build, training, options)
        print()
    if options.table in ("kept", "all"):
        print(KEPT)
        for build, library in (FACTORIES | MORE).items():
            if only and build.__name__ not in only:
                continue
            if find_spec(library or "torch") is None:
                print(f"| {build.__name__} | it needs {library} |" + " |" * 5, flush=True)
            else:
                keep(build)


COUNTED = """\
| network | pass | nodes | edges | layers: nodes | edges | parameters | = model's | FLOPs \
| of FlopCounterMode | saved MB | of hooks | import s | plan, operators | plan, layers |
|---|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|"""
MEASURED = """\
| network | pass | profile s | forward | its sum after, ms | backward | its sum after, ms |
|---|---|--:|---|--:|---|--:|"""


KEPT = """\
| model | nodes | parameters = model's | ms on an h100 | on meta | --tensors | model unchanged |
|---|--:|---|--:|---|---|---|"""


def said(work: Callable[[], Any]) -> Any:
    """Return what a function returns, or why it refuses."""
    try:
        return work()
    except InputError as error:
        return f"refused: {error}".replace("|", "/")


def state_of(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return hooks, modules, numbers and settings of a model, and what it returns."""
    found: dict[str, Any] = {"state": [value.clone() for value in model.state_dict().values()]}
    for path, module in model.named_modules():
        tables = {key: value for key, value in vars(module).items() if isinstance(value, dict)}
        found[path] = [type(module), module.training, sorted(vars(module))]
        found[path] += [list(tables[key]) for key in sorted(tables)]
    found["config"] = str(getattr(model, "config", ""))
    found["gradients"] = [parameter.grad for parameter in model.parameters()]
    torch.manual_seed(1)
    out = tree_leaves(copy.deepcopy(model)(**inputs))
    found["out"] = [value.detach() for value in out if isinstance(value, torch.Tensor)]
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two nested values are equal; of outputs, up to rounding."""
    if isinstance(one, torch.Tensor):
        return torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def keep(build: Callable[[], Made]) -> None:
    torch.manual_seed(0)
    model, inputs = build()
    model = getattr(model, "_orig_mod", model).train()
    with torch.device("meta"):
        there, given = build()
    before = state_of(model, inputs)
    here = said(lambda: profile(model, (), inputs, training=True, estimate="h100").workload)
    meta = said(lambda: profile(there, (), given, training=True, estimate="h100").workload)
    program = said(lambda: tensor_program(model, (), inputs, estimate="h100").program)
    unchanged = same(before, state_of(model, inputs))
    nodes, parameters, time_ms = here, "", ""
    if not isinstance(here, str):
        once = stagecut.instances.tied_as(here, "colour")
        own, found = sum(p.numel() for p in model.parameters()), once.extra["parameters"].sum()
        unused = int(here.provenance.get("unused_parameters", 0))
        nodes, time_ms = here.n, f"{here.times['accelerator'].sum():.5g}"
        parameters = "yes" if found + unused == own else f"no: {found + unused:,.0f} of {own:,}"
    if not isinstance(meta, str):
        meta = "the same" if meta.fingerprint == here.fingerprint else "**differs**"
    if not isinstance(program, str):
        kinds = sorted({one.kind for one in program.unruled})
        program = f"{len(program.operators)}" + (f"; no rule: {', '.join(kinds)}" if kinds else "")
    cells = [build.__name__, nodes, parameters, time_ms, meta, program]
    cells.append("yes" if unchanged else "**no**")
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def count(build: Callable[[], Made], training: bool, options: argparse.Namespace) -> None:
    model, inputs = build()
    own = sum(p.numel() for p in model.parameters())
    start = time.process_time()
    done = profile(model, (), inputs, training=training, estimate="h100", tied="copies")
    seconds = time.process_time() - start
    layers = profile(
        model, (), inputs, training=training, estimate="h100", depth="auto", tied="copies"
    )
    torchs = counted_by_torch(model, (), inputs, training)
    workload, coarse = done.workload, layers.workload
    parameters = workload.extra["parameters"].sum()
    ours = workload.extra["flops"].sum()
    kept = saved_bytes(done.recording)
    cells = [
        build.__name__,
        "training" if training else "inference",
        workload.n,
        len(workload.edges),
        coarse.n,
        len(coarse.edges),
        f"{parameters:,.0f}",
        "yes" if parameters == own else f"no: {own:,}",
        f"{ours:.4g}",
        f"{ours / torchs.flops:.2%}",
        f"{kept / 1e6:.1f}" if training else "",
        f"{kept / torchs.saved_bytes:.2%}" if training else "",
        f"{seconds:.1f}",
        planned(done, options.method, options.seconds),
        planned(layers, options.method, options.seconds),
    ]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def measure(build: Callable[[], Made], training: bool, _: argparse.Namespace) -> None:
    model, inputs = build()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        workload = profile(model, (), inputs, training=training, cache=Path(cache)).workload
    cells = [
        build.__name__,
        "training" if training else "inference",
        f"{time.perf_counter() - start:.1f}",
    ]
    ms = workload.times["accelerator"]
    for what, part in (("forward", ~workload.backward), ("backward", workload.backward)):
        check = workload.provenance.get(f"{what}_check", "")
        cells += [check, f"{ms[part].sum():.4g}" if check else ""]
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
