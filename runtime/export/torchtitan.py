"""Plans for torchtitan: a Python module whose function puts the stages into a `Trainer.Config`.

Names are those of torchtitan 0.3.0 (torchtitan/config/configs.py), which has its configuration in
Python; its dataclasses have slots, so that a name which another version does not know is an error
there and not ignored.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ...instances import InputError, Plan, Workload
from ...instances.common.escape import docstring
from .stages import ModuleStages, module_stages

NAME = "torchtitan"

#: Our schedules by the names of `torch.distributed.pipelining`.
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
#: Recomputation of all layers, by the names of torchtitan/distributed/activation_checkpoint.py.
FULL = "FullAC"

_TEMPLATE = '''"""The plan for torchtitan: {words}.

    from planned import planned
    def my_model_planned():
        return planned(my_model())  # my_model: a function that returns a Trainer.Config

Start {devices} processes: torchrun ... -m torchtitan.train --module ... --config my_model_planned
"""

from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC


def planned(config):
    """Put the plan into a Trainer.Config, and return it."""
{lines}
    return config
'''


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the stages; torchtitan drops children of the model and items of its lists.

    Raises `InputError` if it cannot express the plan.
    """
    return module_stages(workload, plan, NAME, unit, rounds=True, schedules=tuple(SCHEDULES))


def configured(words: str, devices: int, lines: Sequence[str]) -> str:
    """Return the module whose function runs some lines on a configuration."""
    indented = "\n".join(f"    {line}" for line in lines)
    return _TEMPLATE.format(words=docstring(words), devices=devices, lines=indented)


def assigned(part: str, fields: Mapping[str, object]) -> list[str]:
    """Return assignments of a part of the configuration, an item of a list on a line."""
    found = []
    for name, value in fields.items():
        text = repr(value)
        if isinstance(value, list):
            text = "\n".join(["[", *(f"        {item!r}," for item in value), "    ]"])
        found.append(f"config.{part}.{name} = {text}")
    return found


def recomputing(kind: str | None) -> str:
    """Return the assignment of a policy of recomputation."""
    return f"config.activation_checkpoint = {f'{kind}.Config()' if kind else None}"


def write(stages: ModuleStages) -> str:
    """Return Python. A field `module_fqns_per_model_part` lists the modules of each stage."""
    schedule = stages.schedule or ("1f1b" if stages.rounds == 1 else "interleaved")
    fields: dict[str, object] = {
        "pipeline_parallel_degree": stages.ranks,
        "pipeline_parallel_schedule": SCHEDULES[schedule],
        "data_parallel_replicate_degree": stages.replicas,
        "data_parallel_shard_degree": 1,
        "tensor_parallel_degree": stages.degree,
        "module_fqns_per_model_part": [list(own) for own in stages.modules],
    }
    lines = [f"# Stage s runs on pipeline rank s mod {stages.ranks}."]
    lines += assigned("parallelism", fields)
    if stages.microbatches:
        batch = stages.microbatches * stages.replicas
        lines += [
            f"# {stages.microbatches} microbatches; of n samples: n times these sizes.",
            "config.parallelism.pipeline_parallel_microbatch_size = 1",
            *assigned(
                "training", {"local_batch_size": stages.microbatches, "global_batch_size": batch}
            ),
        ]
    lines.append(recomputing(FULL if stages.recomputes else None))
    return configured(stages.in_words, stages.ranks * stages.replicas * stages.degree, lines)


def read(text: str, _modules: Sequence[str]) -> ModuleStages:
    """Return the stages that `write` wrote."""
    value: dict[str, Any] = {}
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
            name = statement.targets[0].attr
            value[name] = FULL in ast.dump(statement.value)
            if name != "activation_checkpoint":
                value[name] = ast.literal_eval(statement.value)
    if value["data_parallel_shard_degree"] != 1:
        raise InputError(f"{NAME}: shards of replicas are no part of a plan")
    microbatches = value.get("local_batch_size", 0)
    ours = {theirs: name for name, theirs in SCHEDULES.items()}
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


def unit(path: str) -> str:
    """Return the child of the model, or the item of its list, that a path goes through."""
    parts = path.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and parts[1].isdecimal() else parts[0]
