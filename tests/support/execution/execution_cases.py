"""Placements of the small models, and a rank that runs them and compares with the model alone."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
import torch.distributed as dist
from execution_models import MODELS

import stagecut
from stagecut import Plan
from stagecut.instances import PipelinePlacement, Placement
from stagecut.instances.pytorch.profile import Profile, Tied, profile
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.execution.prepare import split_model
from stagecut.runtime.execution.stage import mean_loss
from stagecut.runtime.execution.trainer import PipelineTrainer


def scattered(done: Profile, devices: int, seed: int) -> list[int]:
    """A random placement that keeps colours together: pieces everywhere."""
    draw = random.Random(seed)
    of_colour: dict[int, int] = {}
    return [
        draw.randrange(devices) if c < 0 else of_colour.setdefault(c, draw.randrange(devices))
        for c in done.workload.colours.tolist()
    ]


def contiguous(done: Profile, devices: int) -> list[int]:
    """A planned contiguous placement, as if every node took equally long and links nothing."""
    n = done.workload.n
    times = {kind: np.ones(n) for kind in done.workload.times}
    even = replace(done.workload, times=times, transfer=np.zeros(n))
    problem = stagecut.Throughput(split="contiguous")
    cluster = stagecut.accelerators_and_cpus(devices)
    plan = stagecut.solve(even, cluster, problem, method="greedy").plan
    assert plan is not None
    return plan.placement.tolist()


@dataclass(frozen=True)
class Case:
    """A model, a placement and a schedule."""

    model: str
    placement: str
    schedule: str
    microbatches: int = 4
    replicas: int = 1
    recompute: bool = False
    training: bool = True
    depth: int | None = None
    tied: Tied = "colour"


@cache
def profiled(model: str, training: bool, depth: int | None, tied: Tied) -> Profile:
    module, example = MODELS[model]()
    return profile(module, example, training=training, estimate="h100", depth=depth, tied=tied)


#: An order of the user's own: the first device has the first and the last stage.
OWN = (
    "0F0,0F1,3F0,3B0,0F2,3F1,3I1,0F3,3F2,3B2,3W1,3F3,0B0,3B3,0B1,0I2,0B3,0W2",
    "1F0,2F0,1F1,2F1,2B0,1B0,2B1,1F2,2F2,1F3,2F3,2B2,1B1,1I2,2B3,1B3,1W2",
)


def chunked(case: Case, world: int) -> Plan:
    """A plan for an iteration with two stages on each device: interleaved, or in an order given."""
    done = profiled(case.model, case.training, case.depth, case.tied)
    stage = np.array(contiguous(done, 2 * world))
    _, stage = np.unique(stage, return_inverse=True)
    rows = OWN if case.schedule == "given" else ()
    problem = stagecut.PipelineJob(case.microbatches, case.schedule, actions=rows)
    where = problem.devices_of(2 * world)
    return replace(
        plan_of(done, np.array(where)[stage].tolist()),
        problem=problem,
        solution=PipelinePlacement(stage, where),
    )


def plan_of(done: Profile, device: Sequence[int]) -> Plan:
    workload, devices = done.workload, stagecut.accelerators_and_cpus(max(device) + 1)
    return Plan(
        workload.name, workload.fingerprint, devices, stagecut.Throughput(),
        Placement(np.array(device)), 1.0, 0.0, "test", workload.time_unit,
    )  # fmt: skip


def placed(case: Case, world: int) -> list[int] | None:
    """A placement that uses all devices, or None if there seems to be none."""
    done = profiled(case.model, case.training, case.depth, case.tied)
    devices = world // case.replicas
    if case.placement == "contiguous":
        found = [contiguous(done, devices)]
    else:
        found = [scattered(done, devices, seed) for seed in range(100)]
    return next((device for device in found if len(set(device)) == devices), None)


def run_cases(rank: int, world: int, port: int, cases: Sequence[Case]) -> None:
    """Be one of `world` ranks: run every case, and compare all gradients of this rank."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    try:
        for case in cases:
            check(case, rank, world)
    finally:
        dist.destroy_process_group()


def check(case: Case, rank: int, world: int) -> None:
    model, example = MODELS[case.model]()
    alone = copy.deepcopy(model)
    alone.train(case.training)
    done = profiled(case.model, case.training, case.depth, case.tied)
    if case.placement == "chunks":
        plan = chunked(case, world)
    else:
        device = placed(case, world)
        assert device is not None, case
        plan = plan_of(done, device)
    prepared = split_model(plan, model, example, workload=done.workload)
    if case.placement == "chunks":
        assert [piece.device for piece in prepared.pieces] == list(plan.solution.devices)
    trainer = PipelineTrainer(
        prepared,
        RunOptions(
            schedule=case.schedule,
            microbatches=case.microbatches,
            replicas=case.replicas,
            recompute=case.recompute,
            learning_rate=0.0,
        ),
    )
    count = case.microbatches * case.replicas
    batch = [
        tuple(x * (1 + 0.1 * j) if x.is_floating_point() else x for x in example)
        for j in range(count)
    ]
    expected = 0.0
    outputs = []
    with torch.set_grad_enabled(case.training):
        for inputs in batch:
            found = alone(*inputs)
            outputs.append(found if isinstance(found, tuple) else (found,))
            loss = mean_loss(outputs[-1])
            expected += loss.item() / count
            if case.training:
                (loss / count).backward()
    for _ in range(2):  # the second time everything has been used once
        (loss,) = trainer.run([prepared.inputs(inputs) for inputs in batch])
    assert abs(loss - expected) <= 1e-5 * abs(expected), (case, expected)
    for j, results in trainer.loop.results.items():
        for a, b in zip(results, outputs[j], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=str(case))
    if case.training:
        whole = dict(alone.named_parameters())
        for name, parameter in trainer.trained().parameters.items():
            gradient = whole[name].grad
            assert gradient is not None
            assert parameter.grad is not None, (case, rank, name)
            error = (parameter.grad - gradient).norm() / gradient.norm().clamp_min(1e-12)
            assert error <= 1e-5, (case, rank, name, float(error))
