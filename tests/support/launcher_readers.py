"""Readers of the files of launchers, in our own words: what they say is what was planned."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from stagecut import Plan, Workload
from stagecut.runtime.export import torchtitan, vllm
from stagecut.runtime.export.megatron import is_ahead
from stagecut.runtime.export.registry import launcher_file
from stagecut.runtime.export.stages import ModuleStages


def written(workload: Workload, plan: Plan, name: str) -> tuple[str, ModuleStages]:
    """Return a launcher's file and the stages that it says, after reading them back from it."""
    text, stages = launcher_file(workload, plan, name)
    back = READERS[name](text, [module for own in stages.modules for module in own])
    assert replace(back, devices=stages.devices) == stages
    return text, stages


def read_megatron(text: str, modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote, for a model of these modules, in order."""
    words = shlex.split(text, comments=True)
    value = dict(pairwise(words))
    world = int(next(w for w in words if w.startswith("WORLD_SIZE=")).partition("=")[2])
    ranks = int(value["--pipeline-model-parallel-size"])
    degree = int(value["--tensor-model-parallel-size"])
    parts = _expand(value["--pipeline-model-parallel-layout"]).split("|")
    left = list(modules)
    numbered = [_is_layer(module) for module in left]
    before = left[: numbered.index(True)]
    after = left[len(left) - numbered[::-1].index(True) :]
    layers = left[len(before) : len(left) - len(after)]
    wanted = sum(part.count("t") for part in parts)
    assert wanted == len(layers)
    own, taken = [], 0
    for part in parts:
        count = part.count("t")
        middle = layers[taken : taken + count]
        taken += count
        end = [x for x in after if ("m" if is_ahead(x) else "L") in part]
        own.append((*before * ("E" in part), *middle, *end))
    assert value.get("--mtp-num-layers", "0") == str(sum(part.count("m") for part in parts))
    replicas = world // (ranks * degree)
    microbatches = int(value.get("--global-batch-size", 0)) // replicas
    interleaved = len(parts) > ranks
    return ModuleStages(
        modules=tuple(own),
        ranks=ranks,
        devices=(),
        replicas=replicas,
        degree=degree,
        recomputes="--recompute-granularity" in words,
        schedule="" if not microbatches else "interleaved" if interleaved else "1f1b",
        microbatches=microbatches,
    )


def _expand(layout: str) -> str:
    """Undo the short forms ``t*3`` and ``(tt|)*2``."""
    layout = layout.replace(",", "")
    for pattern in (r"\(([^()]*)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
    return layout


def _is_layer(module: str) -> bool:
    return module.rpartition(".")[2].isdecimal() and not is_ahead(module)


def read_deepspeed(text: str, _modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote."""
    values: dict[str, Any] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign):
            names = [
                node.id for node in ast.walk(statement.targets[0]) if isinstance(node, ast.Name)
            ]
            value = ast.literal_eval(statement.value)
            values |= dict(zip(names, value, strict=True)) if len(names) > 1 else {names[0]: value}
    layers, parts = values["LAYERS"], values["PARTS"]
    return ModuleStages(
        modules=tuple(tuple(layers[a:b]) for a, b in pairwise(parts)),
        ranks=values["PIPELINE"],
        devices=(),
        replicas=values["DATA"],
        degree=values["TENSOR"],
        recomputes=values["RECOMPUTES"],
        schedule="1f1b" if values["MICROBATCHES"] else "",
        microbatches=values["MICROBATCHES"],
    )


def read_torchtitan(text: str, _modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote."""
    value: dict[str, Any] = {}
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
            name = statement.targets[0].attr
            value[name] = torchtitan.FULL in ast.dump(statement.value)
            if name != "activation_checkpoint":
                value[name] = ast.literal_eval(statement.value)
    assert value["data_parallel_shard_degree"] == 1
    microbatches = value.get("local_batch_size", 0)
    ours = {theirs: name for name, theirs in torchtitan.SCHEDULES.items()}
    return ModuleStages(
        modules=tuple(map(tuple, value["module_fqns_per_model_part"])),
        ranks=value["pipeline_parallel_degree"],
        devices=(),
        replicas=value["data_parallel_replicate_degree"],
        degree=value["tensor_parallel_degree"],
        recomputes=value["activation_checkpoint"],
        schedule=ours[value["pipeline_parallel_schedule"]] if microbatches else "",
        microbatches=microbatches,
    )


def read_vllm(text: str, modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote, for a model of these modules, in order."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    value = dict(pairwise(words))
    (partition,) = (w.partition("=")[2] for w in words if w.startswith(f"{vllm.VARIABLE}="))
    ends = [0, *accumulate(int(count) for count in partition.split(","))]
    numbered = [module.rpartition(".")[2].isdecimal() for module in modules]
    first = numbered.index(True)
    bounds = [first + end for end in ends]
    bounds[0], bounds[-1] = 0, len(modules)
    assert ends[-1] == sum(numbered)
    return ModuleStages(
        modules=tuple(tuple(modules[a:b]) for a, b in pairwise(bounds)),
        ranks=int(value["--pipeline-parallel-size"]),
        devices=(),
        replicas=int(value["--data-parallel-size"]),
        degree=int(value["--tensor-parallel-size"]),
    )


def read_accelerate(text: str, _modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote."""
    where = {module: str(device) for module, device in json.loads(text).items()}
    devices = tuple(dict.fromkeys(where.values()))
    modules = tuple(tuple(m for m, own in where.items() if own == d) for d in devices)
    return ModuleStages(modules, len(devices), devices)


READERS = {
    "torchtitan": read_torchtitan,
    "megatron": read_megatron,
    "deepspeed": read_deepspeed,
    "vllm": read_vllm,
    "accelerate": read_accelerate,
}
