"""Training plans whose stages have tensor degrees, by shardings that chance has drawn."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from ranks import DEVICE
from sharded_models import Language, Vision
from torch import nn
from torch.distributed.tensor import DTensor

import stagecut
from stagecut import DeviceMesh, Link, Plan, Sharding, Workload
from stagecut.api.tensor_degrees import _pieces
from stagecut.formulations.sharding.costs import sharding_costs
from stagecut.formulations.task import pose
from stagecut.instances import Stage, TensorProgram
from stagecut.instances.generate.roofline import machine
from stagecut.instances.model.sharding import program_workload
from stagecut.instances.model.solution import in_stages
from stagecut.instances.model.training_layers import training_layers
from stagecut.instances.pytorch.factory import Made
from stagecut.instances.pytorch.profile import Profile, profile
from stagecut.instances.pytorch.tensors import layer_program
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.execution.prepare import split_model
from stagecut.runtime.execution.run import run
from stagecut.runtime.execution.trainer import PipelineTrainer

MICROBATCHES = 4
#: Replicas and tensor degree of each stage.
Shape = tuple[tuple[int, int], ...]


def make(name: str) -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    """Return a model and its microbatches, the same numbers each time."""
    torch.manual_seed(0)
    if name == "language":
        words = [torch.randint(0, 36, (2, 4, 12)) for _ in range(MICROBATCHES)]
        return Language(), [(x, y) for x, y in words]
    images = [torch.randn(4, 3, 8, 8) for _ in range(MICROBATCHES)]
    return Vision(), [(x, torch.randint(0, 12, (4,))) for x in images]


@cache
def profiled(name: str) -> Profile:
    model, batches = make(name)
    return profile(model, batches[0], training=True, estimate="h100", depth=1, tied="copies")


def drawn(program: TensorProgram, degree: int, draw: random.Random) -> str:
    """Return a sharding of a layer's program whose every operator computes as chance has it."""
    link = Link(1e-6, 1e10)
    workload = program_workload(program, "layer", time_unit="ms")
    problem = Sharding(DeviceMesh((degree,), (link,)))
    cluster = stagecut.accelerators_and_cpus(degree)
    choices = sharding_costs(pose(workload, cluster, problem)).choices
    texts = []
    for operator, choice in zip(program.operators, choices, strict=True):
        k = int(choice.signature[draw.randrange(len(choice.cost))][0])
        copied = (
            [s.text for s in operator.signatures].index("->B") if operator.kind == "buffer" else k
        )
        texts.append(operator.signatures[copied].text)
    return " ".join(texts)


def plan_files(name: str, shape: Shape, folder: Path) -> tuple[Workload, Plan]:
    """Write and return layers with drawn shardings, and a plan of stages of them."""
    done = profiled(name)
    whole = training_layers(done.workload)
    layers, draw = whole.layers, random.Random(0)
    assert layers is not None
    order = list(nx.lexicographical_topological_sort(_graph(whole)))
    parts = np.array_split(order, len(shape))
    degree = {v: t for nodes, (_, t) in zip(parts, shape, strict=True) for v in nodes.tolist()}
    sharding = [""] * layers.size
    degrees = np.ones(layers.size, np.int64)
    for v, piece in enumerate(_pieces(done, whole)):
        made = [k for k, n in enumerate(piece.outputs) if n not in piece.inputs]
        ends = layer_program(
            piece.module, [piece.values[n] for n in piece.inputs], made,
            machine(),
        )  # fmt: skip
        for c in (2 * v, 2 * v + 1):
            if degree[v] > 1:
                sharding[c], degrees[c] = drawn(ends.program, degree[v], draw), degree[v]
    workload = replace(whole, layers=replace(layers, degree=degrees, sharding=tuple(sharding)))
    stages = [
        Stage(tuple(sorted(nodes.tolist())), tuple(2 * v for v in sorted(nodes.tolist())), d, t)
        for nodes, (d, t) in zip(parts, shape, strict=True)
    ]
    cluster = stagecut.accelerators_and_cpus(sum(d * t for d, t in shape))
    plan = Plan(
        workload.name, workload.fingerprint, cluster,
        stagecut.PipelineJob(microbatches=MICROBATCHES, schedule="stream"),
        in_stages(stages, cluster), 1.0, 0.0, "test", workload.time_unit,
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    stagecut.save(workload, folder / "workload.json")
    stagecut.save(plan, folder / "plan.json", workload)
    return workload, plan


def _graph(workload: Workload) -> nx.DiGraph:
    graph = nx.DiGraph(workload.edges.tolist())
    graph.add_nodes_from(range(workload.n))
    return graph


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer with state; Adam would make steps of gradients that are rounding."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def alone(name: str, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return the losses of a single process, and the state of the model after the last step."""
    model, batches = make(name)
    optimizer, losses = momentum(model.train().parameters()), []
    for _ in range(steps):
        each = []
        for batch in batches:
            loss = model(*batch)
            (loss / MICROBATCHES).backward()
            each.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(np.mean(each)))
    return losses, dict(model.state_dict())


def clipped(_: int, name: str, folder: Path) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the norm of a batch's gradients, and the gradients here, clipped to 0.01 and whole."""
    model, batches = make(name)
    workload = stagecut.load(folder / "workload.json")
    prepared = split_model(folder / "plan.json", model, batches[0], workload=workload)
    given = [prepared.inputs(batch) for batch in batches]
    stream = PipelineTrainer(
        prepared, RunOptions(schedule="1f1b", microbatches=MICROBATCHES, learning_rate=0.0)
    )
    stream.run(given)
    norm = float(stream.loop.clip_gradients(0.01))
    found = {}
    for own in stream.loop.parameters.values():
        for key, x in own.items():
            assert x.grad is not None
            grad = stream.trained().kept(key, x.grad)
            found[key] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    return norm, found


def run_rank(
    _: int, name: str, folder: Path, options: dict[str, Any]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Be a process of a plan; return losses, and the state of the model that this process has."""
    model, batches = make(name)
    steps = options["steps"]
    inputs = ((batch, {}) for _ in range(steps) for batch in batches)
    made = Made(model, batches[0], {}, inputs)
    asked = RunOptions(optimizer=momentum, threads=1, device=DEVICE, **options)
    workload = stagecut.load(folder / "workload.json")
    done = run(folder / "plan.json", made, asked, workload=workload)
    return [step.loss for step in done], dict(model.state_dict())
