"""Plans for torchtitan: the table `[parallelism]` of its configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

from ...instances import InputError, Plan, Workload
from ...instances.common.escape import one_line, toml
from .stages import ModuleStages, module_stages

NAME = "torchtitan"

#: Our schedules by the names of `torch.distributed.pipelining`.
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the stages; torchtitan drops children of the model and items of its lists.

    Raises `InputError` if it cannot express the plan.
    """
    return module_stages(workload, plan, NAME, unit, rounds=True, schedules=tuple(SCHEDULES))


def write(stages: ModuleStages) -> str:
    """Return TOML. A field `module_fqns_per_model_part` lists the modules of each stage."""
    schedule = stages.schedule or ("1f1b" if stages.rounds == 1 else "interleaved")
    lines = [
        f"# {one_line(stages.in_words)}; stage s runs on pipeline rank s mod {stages.ranks}.",
        "# Older versions call the last field pipeline_parallel_module_fqns_per_model_part.",
        "[parallelism]",
        f"pipeline_parallel_degree = {stages.ranks}",
        f'pipeline_parallel_schedule = "{SCHEDULES[schedule]}"',
        *(["pipeline_parallel_microbatch_size = 1"] if stages.microbatches else []),
        f"data_parallel_replicate_degree = {stages.replicas}",
        "data_parallel_shard_degree = 1",
        f"tensor_parallel_degree = {stages.degree}",
        "module_fqns_per_model_part = [",
    ]
    lines += [f"    [{', '.join(map(toml, own))}]," for own in stages.modules]
    lines += ["]", ""]
    if stages.microbatches:
        lines += [
            f"# {stages.microbatches} microbatches; of n samples: n times both sizes.",
            "[training]",
            f"local_batch_size = {stages.microbatches}",
            "",
        ]
    lines += ["[activation_checkpoint]"]
    lines += [f'mode = "{"full" if stages.recomputes else "none"}"']
    return "\n".join(lines) + "\n"


def read(text: str, _modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote."""
    table = tomllib.loads(text)
    degrees = table["parallelism"]
    if degrees["data_parallel_shard_degree"] != 1:
        raise InputError(f"{NAME}: shards of replicas are no part of a plan")
    microbatches = table.get("training", {}).get("local_batch_size", 0)
    ours = {theirs: name for name, theirs in SCHEDULES.items()}
    return ModuleStages(
        modules=tuple(map(tuple, degrees["module_fqns_per_model_part"])),
        ranks=degrees["pipeline_parallel_degree"],
        devices=(),
        replicas=degrees["data_parallel_replicate_degree"],
        degree=degrees["tensor_parallel_degree"],
        recomputes=table["activation_checkpoint"]["mode"] == "full",
        schedule=ours[degrees["pipeline_parallel_schedule"]] if microbatches else "",
        microbatches=microbatches,
    )


def unit(path: str) -> str:
    parts = path.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and parts[1].isdecimal() else parts[0]
