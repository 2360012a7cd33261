"""The costs beside other estimators on the same published runs.

Times are compared with Calculon's, and memory with that of Calculon, Megatron-LM and
Megatron-Bridge.

The others run from checkouts of their own, unchanged:

    python benchmarks/peers.py FILE… --calculon DIR --python PYTHON --megatron FILE --bridge FILE

PYTHON has what Calculon imports (psutil, pandas). Calculon's model has no embedding, no loss, no
gated feed-forward and no fused attention. Rows that it cannot express are left out for both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Calculon's systems by accelerator family.
SYSTEMS = {"a100": "systems/a100_80g.json", "h100": "systems/h100_80g_nvl8.json"}
#: Korthikanti et al. (2022), figure 1: GiB of weights, gradients and optimizer, and of activations
#: without and with sequence parallelism and selective recomputation, as Calculon's `validation.py`
#: has them.
FIGURE_1 = {
    "megatron-22B": (45.5625, 59.25, 9.5625),
    "gpt3-175B": (45.5625, 66.84375, 12.3515625),
    "turing-530B": (31.640625, 114.0234375, 23.076171875),
    "megatron-1T": (32.958984375, 131.25, 26.5625),
}


# Calculon, in an interpreter of its own.

WORKER = """
import json, logging, sys
import calculon
from calculon.llm import *
log = logging.getLogger()
out = []
for app, exe, system in json.load(sys.stdin):
    try:
        model = Llm(Llm.Application(app), log)
        syst = System(calculon.io.read_json_file(system))
        model.compile(syst, Llm.Execution.from_json(exe))
        model.run(syst)
        stats = model.get_stats_json(False)
        out.append([model.get_total_time(), model.get_mem_tier1_cap_req(), stats["act_space"]])
    except (AssertionError, Llm.Error, ZeroDivisionError) as error:
        out.append(str(error) or type(error).__name__)
json.dump(out, sys.stdout)
"""


def calculon_case(case: Any) -> list[Any] | str:
    """Return application, execution and system as Calculon reads them, or what it lacks."""
    model, layout = case.description, case.layout
    block = model.blocks[0]
    family = case.cluster.accelerator.family
    if len(model.layer_types) > 1 or block.experts or block.feed_forward is None:
        return "experts"
    if block.feed_forward.gated or block.attention.kv_heads != block.attention.heads:
        return "gated or grouped-query"
    if layout.fused_attention:
        return "fused attention"
    if layout.context > 1 or layout.zero > 1 or family not in SYSTEMS:
        return "context parallelism, ZeRO 2 or 3, or the device"
    if layout.schedule.value not in ("1f1b", "interleaved"):
        return "schedule"
    if layout.recompute - {"full", "core_attn"} or layout.global_batch % (
        layout.data * layout.microbatch
    ):
        return "recomputation, or a batch that does not divide"
    recompute = "full" if "full" in layout.recompute else "none"
    if "core_attn" in layout.recompute:
        recompute = "attn_only"
    attention = block.attention
    app = {
        "hidden": model.hidden,
        "feedforward": block.feed_forward.width,
        "seq_size": layout.sequence,
        "attn_heads": attention.heads,
        "attn_size": attention.head_dim,
        "num_blocks": len(model.blocks),
    }
    exe = {
        "num_procs": layout.devices,
        "tensor_par": layout.tensor,
        "pipeline_par": layout.pipeline,
        "data_par": layout.data,
        "tensor_par_net": 0,
        "pipeline_par_net": 0 if layout.devices <= 8 else 1,
        "data_par_net": 0 if layout.devices <= 8 else 1,
        "batch_size": layout.global_batch,
        "microbatch_size": layout.microbatch,
        "datatype": "float16",
        "fused_activation": False,
        "attention_type": "multihead",
        "activation_recompute": recompute,
        "pipeline_interleaving": layout.chunks,
        "optimizer_sharding": layout.zero == 1 and layout.data > 1,
        "tensor_par_comm_type": "rs_ag" if layout.sequence_parallel else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": layout.sequence_parallel,
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
    return [app, exe, SYSTEMS[family]]


def gpt(name: str, app: Mapping[str, Any]) -> Any:
    """Return the description of an application of Calculon's: a GPT with GPT-2's vocabulary."""
    from stagecut.instances.costs.description import Attention, Block, FeedForward
    from stagecut.instances.costs.description import ModelDescription as Model

    attention = Attention(app["attn_heads"], app["attn_heads"], app["attn_size"])
    feed_forward = FeedForward(app["feedforward"], gated=False)
    block = Block(attention, feed_forward=feed_forward, norm="layer", dropout=True)
    return Model(name, app["hidden"], 51200, (block,) * app["num_blocks"], tied=True)


def run_calculon(cases: Sequence[list[Any]], checkout: Path, python: str) -> list[Any]:
    """Return seconds, bytes of a device and bytes of activations for each case, or its error."""
    asked = [[app, exe, str(checkout / system)] for app, exe, system in cases]
    done = subprocess.run(
        [python, "-c", WORKER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(checkout), "PATH": ""},
    )
    return list(json.loads(done.stdout))


# Megatron-LM's and Megatron-Bridge's formulas.


def module_of(path: Path, name: str, stubs: Mapping[str, Mapping[str, Any]]) -> Any:
    """Load one file of a package, its neighbours replaced by the few names that it takes."""
    for stub, names in stubs.items():
        parts = stub.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(parts[end - 1]))
        vars(sys.modules[stub]).update(names)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def shape_of(case: Any) -> dict[str, Any]:
    """Return a model's shape under Megatron's names."""
    model, layout = case.description, case.layout
    sparse = next((b.experts for b in model.blocks if b.experts), None)
    dense = next((b.feed_forward for b in model.blocks if b.feed_forward), None)
    attention = model.blocks[0].attention
    gated = (dense or sparse).gated
    return {
        "num_layers": len(model.blocks),
        "hidden_size": model.hidden,
        "ffn_hidden_size": dense.width if dense else sparse.width,
        "num_attention_heads": attention.heads,
        "kv_channels": attention.key_width,
        "num_query_groups": attention.kv_heads,
        "num_experts": sparse.experts if sparse else None,
        "num_moe_experts": sparse.experts if sparse else None,
        "moe_router_topk": sparse.top_k if sparse else None,
        "moe_ffn_hidden_size": sparse.width if sparse else None,
        "moe_shared_expert_intermediate_size": (sparse.shared_width or None) if sparse else None,
        "moe_layer_freq": [int(block.experts is not None) for block in model.blocks],
        "mtp_num_layers": len(model.mtp) or None,
        "swiglu": gated,
        "gated_linear_unit": gated,
        "normalization": "RMSNorm" if model.blocks[0].norm.value == "rms" else "LayerNorm",
        "group_query_attention": attention.kv_heads != attention.heads,
        "multi_latent_attention": attention.latent,
        "q_lora_rank": attention.q_rank or None,
        "kv_lora_rank": attention.kv_rank,
        "qk_head_dim": attention.head_dim,
        "qk_pos_emb_head_dim": attention.rope_dim,
        "v_head_dim": attention.value_width,
        "padded_vocab_size": model.vocabulary,
        "vocab_size": model.vocabulary,
        "should_pad_vocab": False,
        "untie_embeddings_and_output_weights": not model.tied,
        "share_embeddings_and_output_weights": model.tied,
        "seq_length": layout.sequence // layout.context,
        "micro_batch_size": layout.microbatch,
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "virtual_pipeline_model_parallel_size": layout.chunks if layout.chunks > 1 else None,
        "context_parallel_size": 1,
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        "data_parallel_size": layout.replicas,
        "use_distributed_optimizer": layout.zero > 0,
        "sequence_parallel": layout.sequence_parallel,
        "recompute_granularity": "full" if "full" in layout.recompute else "selective",
        "is_hybrid_model": False,
        "moe_latent_size": None,
        "add_bias_linear": attention.output_bias,
        "world_size": layout.devices,
    }


def megatron_bytes(module: Any, case: Any) -> float:
    """Return the bytes of the fullest rank by Megatron-LM's formula."""
    args = SimpleNamespace(**shape_of(case))
    state = module.compute_weight_and_optimizer_memory(args)
    selective = args.sequence_parallel and args.recompute_granularity == "selective"
    activations = (
        module.compute_activation_memory
        if selective
        else module.compute_activation_memory_without_sp
    )
    return float(state + activations(args, case.layout.microbatches))


def bridge_bytes(module: Any, case: Any) -> float:
    """Return the bytes of the fullest rank by Megatron-Bridge's estimator."""
    import torch.nn.functional as functional

    shape = shape_of(case)
    model = SimpleNamespace(**shape, activation_func=functional.silu if shape["swiglu"] else None)
    config = SimpleNamespace(
        model=model,
        train=SimpleNamespace(micro_batch_size=shape["micro_batch_size"]),
        optimizer=SimpleNamespace(use_distributed_optimizer=shape["use_distributed_optimizer"]),
        data_parallel_size=case.layout.data,
    )
    found = module.estimate_training_memory(config, case.layout.microbatches)
    return float(found.total_memory_bytes)


# The comparison.


def figures(errors: Iterable[float]) -> str:
    """Return count, mean, median and worst of |error|."""
    found = sorted(abs(error) for error in errors)
    if not found:
        return f"{0:5}"
    return (
        f"{len(found):5}{statistics.mean(found):9.1%}{statistics.median(found):9.1%}"
        f"{found[int(0.9 * (len(found) - 1))]:9.1%}{found[-1]:9.1%}"
    )


def main(argv: list[str] | None = None) -> None:
    """Print the errors of each estimator by source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--calculon", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--megatron", type=Path, help="its theoretical_memory_usage.py")
    parser.add_argument("--bridge", type=Path, help="its theoretical_memory_utils.py")
    options = parser.parse_args(argv)
    sys.path.insert(0, str(Path(__file__).parent))
    import published_runs
    from published_rows import cases, read_rows

    runs, _ = cases(read_rows(options.files, [published_runs.ADDED]))
    judged, _ = published_runs.judge(runs)
    head = f"{'rows':>5}{'mean':>9}{'median':>9}{'p90':>9}{'worst':>9}"
    if options.calculon:
        times(judged, options, head)
        figure_1(options, head)
    memory(judged, options, head)


def times(judged: Sequence[Any], options: argparse.Namespace, head: str) -> None:
    """Print errors of seconds on the rows that Calculon can express."""
    asked = [(one, calculon_case(one.case)) for one in judged if one.case.seconds]
    asked = [(one, case) for one, case in asked if not isinstance(case, str)]
    answers = run_calculon([case for _, case in asked], options.calculon, options.python)
    both = [
        (one, answer[0])
        for (one, _), answer in zip(asked, answers, strict=True)
        if not isinstance(answer, str)
    ]
    print(f"\nSeconds of an iteration\n{'source':14}{'':12}{head}")
    sources = dict.fromkeys(one.case.source for one, _ in both)
    for source in sources:
        own = [(one, said) for one, said in both if one.case.source == source]
        print(f"{source:14}{'calculon':12}" + figures(s / o.case.seconds - 1 for o, s in own))
        print(f"{'':14}{'stagecut':12}" + figures(o.ratio - 1 for o, _ in own))
        fresh = [o.ratio - 1 for o, _ in own if not o.fitted]
        print(f"{'':14}{'  not fitted':12}" + figures(fresh))


def figure_1(options: argparse.Namespace, head: str) -> None:
    """Print errors of the bytes in figure 1 of Korthikanti et al., of its own layouts."""
    from stagecut.instances.costs.layout import RECIPES, Layout
    from stagecut.instances.costs.memory import (
        RankStages,
        passes_in_flight,
        rank_memory,
        stage_kept,
    )

    asked: list[list[Any]] = []
    errors: dict[str, list[float]] = {name: [] for name in ("state", "activations")}
    measured = []
    for name, (state, *kept) in FIGURE_1.items():
        app = json.loads((options.calculon / "models" / f"{name}.json").read_text())
        for mode, gib in zip(("none", "seqsel"), kept, strict=True):
            path = options.calculon / "validation/seqsel/fig1" / f"{name}_{mode}.json"
            exe = json.loads(path.read_text())
            asked.append([app, exe, "systems/a100_80e.json"])
            measured.append(gib)
            model = gpt(name, app)
            layout = Layout(
                tensor=exe["tensor_par"],
                sequence_parallel=mode == "seqsel",
                pipeline=exe["pipeline_par"],
                chunks=exe["pipeline_interleaving"],
                schedule="interleaved" if exe["pipeline_interleaving"] > 1 else "1f1b",
                microbatch=exe["microbatch_size"],
                global_batch=exe["batch_size"],
                sequence=app["seq_size"],
                recompute=frozenset({"core_attn"} if mode == "seqsel" else ()),
                fused_attention=False,
                recipe=RECIPES["megatron-bf16"],
            )
            stages = RankStages.of(model, layout)
            ours = sum(
                count * stage_kept(model, layout, stage, stages)
                for stage, count in passes_in_flight(layout, 0)[0].items()
            )
            held = rank_memory(model, layout, 0, stages)
            errors["activations"].append(ours / 2**30 / gib - 1)
            whole = held.parameters + held.gradients + held.optimizer
            errors["state"].append(whole / 2**30 / state - 1)
    said = run_calculon(asked, options.calculon, options.python)
    print(f"\nBytes of the first rank in Korthikanti et al., figure 1\n{'':14}{'':12}{head}")
    print(f"{'state':14}{'stagecut':12}" + figures(errors["state"]))
    theirs = [one[2] / 2**30 / gib - 1 for one, gib in zip(said, measured, strict=True)]
    print(f"{'activations':14}{'calculon':12}" + figures(theirs))
    print(f"{'':14}{'stagecut':12}" + figures(errors["activations"]))


def memory(judged: Sequence[Any], options: argparse.Namespace, head: str) -> None:
    """Print errors of published peaks, on the rows that all estimators can express."""
    known = {}
    if options.megatron:
        stubs = {"megatron_peer.utils": {"print_rank_0": print, "is_hybrid_model": lambda _: False}}
        module = module_of(options.megatron, "megatron_peer.usage", stubs)
        known["megatron-lm"] = lambda case: megatron_bytes(module, case)
    if options.bridge:
        stubs = {
            "megatron.bridge.training.config": {"ConfigContainer": object},
            "megatron.bridge.utils.vocab_utils": {"calculate_padded_vocab_size": None},
        }
        bridge = module_of(options.bridge, "bridge_peer", stubs)
        known["bridge"] = lambda case: bridge_bytes(bridge, case)
    if options.calculon:
        asked = [one for one in judged if not isinstance(calculon_case(one.case), str)]
        cases = [calculon_case(one.case) for one in asked]
        said = run_calculon(cases, options.calculon, options.python)
        answers = {
            id(one.case): answer[1]
            for one, answer in zip(asked, said, strict=True)
            if not isinstance(answer, str)
        }
        known["calculon"] = lambda case: answers.get(id(case))
    print(f"\nPeak bytes of a device\n{'source':14}{'':12}{head}")
    measured = [one for one in judged if one.case.peak_bytes]
    for source in dict.fromkeys(one.case.source for one in measured):
        own = [one for one in measured if one.case.source == source]
        label = source
        for name, estimate in known.items():
            found = [(one, estimate(one.case)) for one in own]
            errors = [said / one.case.peak_bytes - 1 for one, said in found if said]
            print(f"{label:14}{name:12}" + figures(errors))
            label = ""
        errors = [one.peak_bytes / one.case.peak_bytes - 1 for one in own]
        print(f"{label:14}{'stagecut':12}" + figures(errors))


if __name__ == "__main__":
    main()
