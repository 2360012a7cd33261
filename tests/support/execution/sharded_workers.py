"""Shardings whose every operator has a random signature, and a rank that runs them."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sharded_models import GROUPED, MODELS
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import stagecut
from stagecut import DeviceMesh, Link, Plan, Sharding, Workload
from stagecut.formulations.sharding.costs import sharding_costs
from stagecut.formulations.task import pose
from stagecut.instances import PrimitiveLink, Role, TensorSharding
from stagecut.instances.model.sharding import gradient_buckets
from stagecut.instances.model.tensor_program import COPIED, PARTIAL
from stagecut.runtime import evaluate
from stagecut.runtime.execution.checkpoint import merge_checkpoint, restore, save
from stagecut.runtime.execution.checkpoint_folder import newest, step_path
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.execution.sharded import collectives
from stagecut.runtime.execution.sharded.collectives import join_mesh, part_of
from stagecut.runtime.execution.sharded.prepare import prepare_sharding
from stagecut.runtime.execution.sharded.trainer import ShardedDevice, ShardedTrainer
from stagecut.runtime.execution.steps import FirstStep, check_first_step

#: What torch calls a collective in its counts.
COUNTED = {
    "all-gather": "all_gather_into_tensor",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all_single",
    "reduce-scatter": "reduce_scatter_tensor",
    "gather": "gather_",
    "scatter": "scatter_",
    "reduce": "reduce_",
    "broadcast": "broadcast_",
}

#: Modules with their groups of devices.
Placement = tuple[tuple[str, int], ...]

#: Collectives without a root, all of which others can do as well.
DIRECT = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter")


def random_plan(
    workload: Workload,
    shape: tuple[int, ...],
    seed: int,
    bucket_bytes: float = 0.0,
    placement: Placement = (),
) -> Plan:
    """Return a sharding in which every operator computes as chance has it; buffers are copied.

    With an odd seed it is on devices where collectives that have a root are by far cheaper. With
    `bucket_bytes` gradients are converted in such buckets; `placement` is that of modules.
    """
    own = [
        PrimitiveLink(name, Link(1.0, 1e10), axis=axis)
        for axis in range(len(shape))
        for name in DIRECT * (seed % 2)
    ]
    overlap = {"overlap": True, "bucket_bytes": bucket_bytes} if bucket_bytes else {}
    mesh = DeviceMesh(shape, (Link(1e-6, 1e10),) * len(shape), tuple(own))
    problem = Sharding(mesh, placement=placement, **overlap)
    plan = stagecut.solve(workload, problem=problem, method="replicate").plan
    assert plan is not None
    task = pose(workload, plan.cluster, problem)
    draw = random.Random(seed)
    rows = [c.signature[draw.randrange(len(c.cost))] for c in sharding_costs(task).choices]
    for v, operator in enumerate(workload.program.operators if workload.program else ()):
        if operator.kind == "buffer":
            rows[v] = np.full(len(shape), [s.text for s in operator.signatures].index("->B"))
    solution = TensorSharding(np.array(rows))
    report = evaluate(workload, plan.cluster, problem, solution)
    assert not report.violations
    return replace(plan, solution=solution, objective=report.objective, bound=0.0, method="random")


def run_random(
    _: int,
    shape: tuple[int, ...],
    name: str,
    seeds: range,
    bucket_bytes: float = 0.0,
    placement: Placement = (),
) -> tuple[int, int]:
    """Run random shardings; losses, gradients, bytes and collectives must be as they should.

    Returns the number of conversions, and of what was computed beside conversions of buckets.
    """
    model, inputs = (MODELS | GROUPED)[name]()
    workload = stagecut.tensor_program(model, inputs, estimate="h100")
    place = join_mesh(shape)
    converted = beside = 0
    for seed in seeds:
        alone = copy.deepcopy(model)
        prepared = prepare_sharding(
            random_plan(workload, shape, seed, bucket_bytes, placement),
            copy.deepcopy(model),
            inputs,
            workload=workload,
        )
        device = ShardedDevice(prepared, place, record=True)
        with CommDebugMode() as counter:
            device.step(prepared.inputs(inputs))
        loss = device.loss()
        expected = alone(*inputs)
        expected.backward()
        assert abs(loss - expected.item()) <= 1e-5 * abs(expected.item()), (seed, loss)
        gradients = dict(alone.named_parameters())
        largest = max(float(p.grad.abs().max()) for p in gradients.values())
        for operator, (_, how) in prepared.sharded.sources(Role.PARAMETER):
            name = str(operator.name)
            if operator.gradient is not None:
                wanted, found = gradients[name].grad, device.parts.parameters[name].grad
                torch.testing.assert_close(
                    found, part_of(wanted, how, place), rtol=1e-5, atol=1e-5 * largest
                )
        buffers = dict(alone.named_buffers())
        for name in device.parts.lying:
            if name in buffers:
                torch.testing.assert_close(device.parts.whole(name).cpu(), buffers[name])
        if placement:
            beside += check_groups(device)
        else:
            beside += check_collectives(device, counter, rooted=seed % 2 == 1)
        converted += len(prepared.sharded.report.converted)
    return converted, beside


def devices_of(_rank: int, device: str) -> dict[str, set[str]]:
    """Return where the gradients and losses of one of two devices are, by the model's name.

    The group is one that exchanges nothing, so that a device needs no backend of its own.
    """
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    place = join_mesh((2,), torch.device(device))
    found: dict[str, set[str]] = {}
    for name, make in MODELS.items():
        model, inputs = make()
        workload = stagecut.tensor_program(model, inputs, estimate="h100")
        plan = random_plan(workload, (2,), 0)
        prepared = prepare_sharding(plan, model, inputs, workload=workload)
        sharded = ShardedDevice(prepared, place)
        sharded.step(prepared.inputs(inputs))
        gradients = [p.grad for p in sharded.parts.parameters.values() if p.grad is not None]
        found[name] = {str(x.device) for x in (*gradients, *sharded.losses.values())}
    dist.destroy_process_group()
    return found


def train_and_go_on(
    _: int, shape: tuple[int, ...], name: str, folder: Path, placement: Placement = ()
) -> None:
    """Train by one sharding, keep a checkpoint, and go on by another: as one process does."""
    model, inputs = (MODELS | GROUPED)[name]()
    workload = stagecut.tensor_program(model, inputs, estimate="h100")

    def optimizer(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3)

    def trainer(seed: int, whole: torch.nn.Module) -> ShardedTrainer:
        plan = random_plan(workload, shape, seed, placement=placement if seed else ())
        prepared = prepare_sharding(plan, whole, inputs, workload=workload)
        return ShardedTrainer(prepared, RunOptions(optimizer=optimizer))

    alone = copy.deepcopy(model)
    stepper = optimizer(alone.parameters())
    expected = []
    for _step in range(3):
        loss = alone(*inputs)
        loss.backward()
        last = {name: p.grad.clone() for name, p in alone.named_parameters()}
        stepper.step()
        stepper.zero_grad()
        expected.append(loss.item())
    first = trainer(0, copy.deepcopy(model))
    losses = [first.run([first.sharded.prepared.inputs(inputs)])[0] for _step in range(2)]
    save(step_path(folder, 2), first.trained(), taken=2, plan="a", model="m")
    torch.testing.assert_close(merge_checkpoint(folder), _put_together(first), rtol=0, atol=0)
    other = trainer(1, copy.deepcopy(model))
    restore(newest(folder), other.trained(), "b")
    losses += other.run([other.sharded.prepared.inputs(inputs)])
    check_first_step(losses[-1], other.trained(), FirstStep(expected[-1], last))
    for found, wanted in zip(losses, expected, strict=True):
        assert abs(found - wanted) <= 1e-4 * abs(wanted), (losses, expected)


def _put_together(trainer: ShardedTrainer) -> dict[str, torch.Tensor]:
    """Return the `state_dict` of a sharding's model as it is now."""
    parts = trainer.sharded.parts
    state = trainer.whole
    wholes = {name: parts.whole(name) for name in sorted(set(state.tensors.values()))}
    return {name: wholes[own] for name, own in state.tensors.items()} | dict(state.untouched)


def check_collectives(device: ShardedDevice, counter: CommDebugMode, *, rooted: bool) -> int:
    """What was sent is what the plan says, and torch counts the same collectives.

    Returns how much was computed beside conversions of buckets.
    """
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, [one.bytes for one in device.operators.events])
    sizes = np.sum(everywhere, axis=0).tolist()
    events = list(zip(device.operators.events, sizes, strict=True))
    report = device.prepared.sharded.report
    planned: dict[tuple[str, int], list[float]] = {}
    for one in report.converted:
        for step in one.steps:
            if step.bytes:
                planned.setdefault((step.collective, step.axis), []).append(step.bytes)
    sent: dict[tuple[str, int], list[float]] = {}
    for event, size in events:
        if event.axis >= 0 and not event.within:
            sent.setdefault((event.kind, event.axis), []).append(size)
    assert {key: sorted(sizes) for key, sizes in sent.items()} == {
        key: sorted(sizes) for key, sizes in planned.items()
    }
    used = {kind for kind, _ in sent}
    assert not used & set(DIRECT) if rooted else used <= set(DIRECT)
    within = sum(size for event, size in events if event.within)
    assert within == sum(size for size, _ in report.added)
    counted = {str(op).split(".")[-1]: n for op, n in counter.get_comm_counts().items()}
    seen: dict[str, int] = {}
    for event in device.operators.events:
        if event.axis >= 0:
            seen[COUNTED[event.kind]] = seen.get(COUNTED[event.kind], 0) + 1
    together, beside = _summed_together(device)
    for kind, saved in together.items():
        seen[COUNTED[kind]] -= saved
    assert {key: n for key, n in counted.items() if n} == seen, (counted, seen, together)
    return beside


def check_groups(device: ShardedDevice) -> int:
    """What was sent is what the plan says; returns how many operators this process left out."""
    everywhere: list[Any] = [None] * dist.get_world_size()
    events = device.operators.events
    mine = [(e.kind, e.axis, e.within, e.bytes) for e in events if e.axis >= 0]
    dist.all_gather_object(everywhere, mine)
    report = device.prepared.sharded.report
    planned: Counter[tuple[str, int]] = Counter()
    for one in report.converted:
        for step in one.steps:
            planned[step.collective, step.axis] += step.bytes
    sent: Counter[tuple[str, int]] = Counter()
    within = 0.0
    for kind, axis, is_within, size in chain(*everywhere):
        within += size * is_within
        sent[kind, axis] += size * (not is_within)
    assert +sent == +planned
    assert within == sum(size for size, _ in report.added)
    computed = len({e.name for e in events if e.axis < 0})
    return len(device.prepared.sharded.operations) - computed


def _summed_together(device: ShardedDevice) -> tuple[dict[str, int], int]:
    """Return how many collectives of each kind a plan's buckets save, and what computes beside.

    Of each bucket those gradients are added up together that are added up first, along the same
    axis, and lie alike then.
    """
    sharded, problem = device.prepared.sharded, device.prepared.plan.problem
    assert isinstance(problem, Sharding)
    if not problem.overlap:
        return {}, 0
    program, events = sharded.program, device.operators.events
    computed = [event for event in events if event.axis < 0]
    first = {one.tensor: one.steps[0] for one in sharded.report.converted}
    saved: dict[str, int] = {}
    beside = 0
    for bucket in gradient_buckets(program, problem):
        together: dict[tuple[str, int], list[int]] = {}
        for t in bucket:
            step = first.get(t)
            if step is not None and step.collective in ("all-reduce", "reduce-scatter"):
                together.setdefault((step.collective, step.axis), []).append(t)
        for (kind, axis), tensors in together.items():
            saved[kind] = saved.get(kind, 0) + len(tensors) - 1
            name = program.tensors[tensors[0]].name
            (sums,) = [e for e in events if (e.name, e.kind, e.axis) == (name, kind, axis)]
            beside += sum(sums.start_s <= e.start_s and e.end_s <= sums.end_s for e in computed)
    return saved, beside


def convert_complex(_rank: int) -> None:
    """Sum, gather and exchange complex numbers."""
    place = join_mesh((2,))
    whole = torch.complex(torch.arange(16.0).view(4, 4), torch.ones(4, 4))
    for before, after in ((0, 1), (1, 0), (0, COPIED), (PARTIAL, COPIED), (PARTIAL, 1)):
        part = whole.to(place.device) if before == PARTIAL else part_of(whole, (before,), place)
        made, _ = collectives.step(part, before, after, 0, place)
        expected = 2 * whole if before == PARTIAL else whole
        assert torch.equal(made, part_of(expected, (after,), place))
    (bucket,) = collectives.begin_sums([whole.to(place.device)], [COPIED], 0, place)()
    assert torch.equal(bucket.cpu(), 2 * whole)
