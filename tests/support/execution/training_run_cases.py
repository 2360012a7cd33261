"""Small models with training plans, and what a rank does with one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from execution_models import MODELS
from loop_workers import state_of
from ranks import DEVICE

import stagecut
from stagecut import Plan, Workload
from stagecut.instances import Layers, Stage
from stagecut.instances.model.solution import in_stages
from stagecut.instances.pytorch.profile import Profile, profile
from stagecut.runtime.execution.own_loop.loop import Loop, stage_chain
from stagecut.runtime.execution.prepare import training_pieces
from stagecut.runtime.execution.stage import mean_loss
from stagecut.runtime.schedules import make_schedule

MICROBATCHES = 6


@cache
def profiled(name: str) -> Profile:
    model, example = MODELS[name]()
    return profile(model, example, training=True, estimate="h100", depth=1, tied="copies")


def workload_of(done: Profile) -> Workload:
    """Return the forward nodes as layers that may recompute: configuration 2v, and 2v + 1."""
    whole = done.workload
    nodes = np.flatnonzero(~whole.backward).tolist()
    edges = [(nodes.index(u), nodes.index(v)) for u, v in whole.edges.tolist() if v in nodes]
    n = len(nodes)
    zeros = np.zeros(2 * n)
    layers = Layers(
        node=np.repeat(np.arange(n), 2), degree=np.ones(2 * n, np.int64),
        label=("vanilla", "recompute") * n, recomputes=np.tile([False, True], n),
        time=np.tile([3.0, 4.0], n), weight_bytes=zeros, bytes_per_microbatch=zeros,
        fixed_bytes=zeros, edge_bytes=np.zeros(len(edges)), sync_bytes=({},) * (2 * n),
        microbatches=MICROBATCHES, bandwidth=1.0,
    )  # fmt: skip
    return Workload(
        name=whole.name, ids=tuple(whole.ids[v] for v in nodes), edges=np.array(sorted(edges)),
        times={"accelerator": np.ones(n)}, memory_bytes=np.zeros(n), transfer=np.zeros(n),
        layers=layers,
    )  # fmt: skip


def plan_of(workload: Workload, replicas: tuple[int, ...], *, recompute: bool | str) -> Plan:
    """Return a plan of stages of about equally many layers; ``some``: every second recomputes."""
    graph = nx.DiGraph(workload.edges.tolist())
    graph.add_nodes_from(range(workload.n))
    order = list(nx.lexicographical_topological_sort(graph))
    stages = []
    for nodes, count in zip(np.array_split(order, len(replicas)), replicas, strict=True):
        own = tuple(sorted(nodes.tolist()))
        again = {v: k % 2 if recompute == "some" else int(recompute) for k, v in enumerate(own)}
        stages.append(Stage(own, tuple(2 * v + again[v] for v in own), count, 1))
    cluster = stagecut.accelerators_and_cpus(sum(replicas))
    return Plan(
        workload.name, workload.fingerprint, cluster, stagecut.PipelineJob(schedule="stream"),
        in_stages(stages, cluster), 1.0, 0.0, "test", workload.time_unit,
    )  # fmt: skip


def microbatches(name: str) -> list[tuple[torch.Tensor, ...]]:
    _, example = MODELS[name]()
    return [
        tuple(x * (1 + 0.1 * j) if x.is_floating_point() else x for x in example)
        for j in range(MICROBATCHES)
    ]


def gradients(
    _: int, name: str, replicas: tuple[int, ...], schedule: str, recompute: bool | str
) -> Any:
    """Return losses and gradients of one batch."""
    done = profiled(name)
    workload = workload_of(done)
    plan = plan_of(workload, replicas, recompute=recompute)
    cut = training_pieces(MODELS[name]()[0], done, workload, plan)
    stages = stage_chain(cut.ranks, sum(replicas), training=True)
    made = make_schedule(schedule, stages, MICROBATCHES)
    loop = Loop(cut.pieces, cut.ranks, made, recompute=cut.recompute)
    data = microbatches(name)
    loop.run(lambda j: data[j])
    return {j: float(x) for j, x in loop.losses.items()}, state_of(loop, "grad")


def alone(name: str) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    """Return the same of the model in one process."""
    model, _ = MODELS[name]()
    losses = {}
    for j, inputs in enumerate(microbatches(name)):
        made = model.train()(*inputs)
        loss = mean_loss(made if isinstance(made, tuple) else (made,))
        (loss / MICROBATCHES).backward()
        losses[j] = loss.item()
    return losses, {n: x.grad for n, x in model.named_parameters() if x.grad is not None}


def run_file(_: int, folder: str, name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Run a plan file for a step of all microbatches; return its loss and the gradients here."""
    model, _inputs = MODELS[name]()
    plan = Path(folder) / "plan.json"
    steps = stagecut.run(plan, model, iter(microbatches(name)), steps=1, threads=1, device=DEVICE)
    grads = {n: x.grad for n, x in model.named_parameters() if x.grad is not None}
    return [step.loss for step in steps], grads
