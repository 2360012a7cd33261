"""Shardings that run: their time and traffic on processes of this machine, beside the plan.

    PYTHONPATH=.dev python benchmarks/sharding_run.py bytes    sent = planned, by CommDebugMode
    PYTHONPATH=.dev python benchmarks/sharding_run.py vgg      all 27 of D, R, C, and auto
    PYTHONPATH=.dev python benchmarks/sharding_run.py beta     plans of each beta, and of time
    PYTHONPATH=.dev python benchmarks/sharding_run.py faces    from data to model parallel
    PYTHONPATH=.dev python benchmarks/sharding_run.py scaling  one batch on 1, 2 and 4 processes

Prices are measured here first: every operator on one thread, and the collectives of gloo on as many
processes as run. Prints Markdown: the predicted objective, the median and least wall time of a step
(forward and backward), and the CPU time of the busiest process. If there are more processes than
cores, they take turns, and other programs lengthen the wall time: then go by CPU time. `scaling`
also puts its rows into `results/sharding_run_scaling.csv`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ranks import on_ranks
from results import write
from sharding_models import Made
from sharding_small import FAMILIES, NETWORKS, SCALED, classifier
from torch.distributed.tensor.debug import CommDebugMode

import stagecut
from stagecut import DeviceMesh, Limits, Link, Plan, Sharding, Workload, evaluate, solve
from stagecut.formulations.sharding.costs import sharding_costs
from stagecut.formulations.task import pose
from stagecut.instances import TensorSharding
from stagecut.runtime.execution.sharded.collectives import join_mesh
from stagecut.runtime.execution.sharded.prepare import prepare_sharding
from stagecut.runtime.execution.sharded.trainer import ShardedDevice
from stagecut.runtime.measure.collectives import measure_collectives

SIZES = [1 << k for k in range(10, 27, 2)]


@dataclass(frozen=True)
class Ran:
    """What a plan took: seconds on the clock (median, least) and of the busiest process; counts."""

    wall: float
    least: float
    busy: float
    sent: float
    counted: dict[str, int]


def made_again(name: str, widths: Sequence[int], batch: int) -> Made:
    """Return a model with its inputs; the same numbers each time."""
    torch.manual_seed(0)
    if widths:
        return classifier(*widths, batch=batch)
    return {**FAMILIES, **NETWORKS, **SCALED}[name]()


def train(
    folder: str, model: tuple[str, Sequence[int], int], count: int, seconds: float
) -> list[Ran]:
    """Be a rank: run every plan in the folder."""
    torch.set_num_threads(1)
    workload = stagecut.load(f"{folder}/workload.json")
    module, inputs = made_again(*model)
    devices: list[tuple[ShardedDevice, Any, float, dict[str, int]]] = []
    for k in range(count):
        plan = stagecut.load_plan(f"{folder}/plan{k}.json", workload)
        prepared = prepare_sharding(plan, module, inputs, workload=workload)
        device = ShardedDevice(prepared, join_mesh(prepared.sharded.mesh), record=True)
        batch = prepared.inputs(inputs)
        with CommDebugMode() as counter:
            device.step(batch)  # warms up, and is counted
        counted = {str(op).split(".")[-1]: n for op, n in counter.get_comm_counts().items() if n}
        sent = sum(event.bytes for event in device.operators.events) * dist.get_world_size()
        device.operators.record = False
        devices.append((device, batch, sent, counted))
    walls: list[list[float]] = [[] for _ in devices]
    busy: list[list[float]] = [[] for _ in devices]
    begun, go_on = time.perf_counter(), True
    while go_on:  # plans take turns, so that what disturbs does not hit one of them alone
        for k, (device, batch, _, _) in enumerate(devices):
            for parameter in device.parts.parameters.values():
                parameter.grad = None
            dist.barrier()
            clock, own = time.perf_counter(), time.process_time()
            device.step(batch)
            busy[k].append(time.process_time() - own)
            walls[k].append(time.perf_counter() - clock)
            for parameter in device.parts.parameters.values():
                parameter.grad = None
        left = time.perf_counter() - begun < seconds * count
        more = torch.tensor(float(left or (len(walls[0]) < 3 and seconds > 0)))
        dist.broadcast(more, 0)
        go_on = bool(more)
    mine = [(statistics.median(w), min(w), statistics.median(b))
            for w, b in zip(walls, busy, strict=True)]  # fmt: skip
    everywhere: list[Any] = [mine] * dist.get_world_size()
    dist.all_gather_object(everywhere, mine)
    return [
        Ran(*(max(one[k][part] for one in everywhere) for part in range(3)), sent, counted)
        for k, (_, _, sent, counted) in enumerate(devices)
    ]


def ran(
    workload: Workload,
    model: tuple[str, Sequence[int], int],
    plans: Sequence[Plan],
    seconds: float,
) -> list[Ran]:
    """Run plans of one mesh, one after the other, on as many processes."""
    problem = plans[0].problem
    assert isinstance(problem, Sharding)
    with TemporaryDirectory() as folder:
        stagecut.save(workload, Path(folder) / "workload.json")
        for k, plan in enumerate(plans):
            stagecut.save(plan, Path(folder) / f"plan{k}.json", workload)
        done: list[Ran] = on_ranks(problem.mesh.size, train, folder, model, len(plans), seconds)
        return done


def priced(model: tuple[str, Sequence[int], int]) -> Workload:
    """Return the program of a model with its operators measured on one thread."""
    torch.set_num_threads(1)
    module, inputs = made_again(*model)
    return stagecut.tensor_program(module, inputs, name=model[0])


def collectives(shape: tuple[int, ...]) -> list[Link]:
    """Be a rank: measure the links of a mesh."""
    torch.set_num_threads(1)
    return [axis.link for axis in measure_collectives(shape, SIZES, seconds=6.0)]


def measured_mesh(*shape: int) -> DeviceMesh:
    """Return a mesh with the links that its processes have."""
    size = int(np.prod(shape))
    mesh = DeviceMesh(shape, tuple(on_ranks(size, collectives, shape)))
    said = ", ".join(
        f"{1e6 * link.latency_s:.0f} µs, {link.bytes_per_s / 1e9:.2f} GB/s" for link in mesh.links
    )
    print(f"\n{mesh.text} processes; collectives measured: {said}\n")
    return mesh


def plan_of(workload: Workload, problem: Sharding, method: str = "auto") -> Plan:
    """Return a plan."""
    found = solve(workload, problem=problem, method=method, limits=Limits(seconds=60))
    assert found.plan is not None, (found.reason, found.notes)
    return found.plan


def seconds_of(workload: Workload, plan: Plan, mesh: DeviceMesh) -> float:
    """Return what a plan takes by the objective of time, in ms."""
    timed = Sharding(mesh)
    return evaluate(workload, plan.cluster, timed, plan.solution).objective


def table(rows: Sequence[tuple[str, float, Ran]]) -> None:
    """Print plans by the time that they were predicted to take."""
    print("| plan | predicted ms | measured ms | least | busiest process, CPU ms | bytes sent |")
    print("|---|---|---|---|---|---|")
    for name, predicted, one in sorted(rows, key=lambda row: row[1]):
        print(f"| {name} | {predicted:.4g} | {1e3 * one.wall:.4g} | {1e3 * one.least:.4g} "
              f"| {1e3 * one.busy:.4g} "
              f"| {one.sent:,.0f} |")  # fmt: skip
    order = [np.argsort(np.argsort(values)) for values in (
        [row[1] for row in rows], [row[2].least for row in rows], [row[2].busy for row in rows]
    )]  # fmt: skip
    if len(rows) > 2:
        clock, cpu = (float(np.corrcoef(order[0], other)[0, 1]) for other in order[1:])
        print(f"\nrank correlation of predicted with least: {clock:.2f}, CPU {cpu:.2f}")
    print(flush=True)


def vgg(options: argparse.Namespace) -> None:
    """All 27 combinations of data, row and column parallelism against auto."""
    widths = (25088, 4096, 4096, 1000) if options.full else (6272, 1024, 1024, 256)
    model = ("vgg16's classifier", widths, 64)
    workload = priced(model)
    assert workload.program is not None
    names = [f"layers.{k}" for k in range(3)]
    products = [o for o in workload.program.operators if o.kind == "aten.addmm"]
    lies = {"D": "B", "R": "S1", "C": "S0"}
    ways = {"D": "B,S0,B", "R": "P,S1,S0", "C": "S0,B,S1"}
    for p in options.processes:
        mesh = measured_mesh(p)
        plans = {"auto": plan_of(workload, Sharding(mesh))}
        for letters in itertools.product("DRC", repeat=3):
            fixed = [(f"{n}.weight", lies[c]) for n, c in zip(names, letters, strict=True)]
            fixed += [(o.name, ways[c]) for o, c in zip(products, letters, strict=True)]
            plans["".join(letters)] = plan_of(workload, Sharding(mesh, fixed=tuple(fixed)))
        done = ran(workload, model, list(plans.values()), options.seconds)
        table([(name, seconds_of(workload, plan, mesh), one)
               for (name, plan), one in zip(plans.items(), done, strict=True)])  # fmt: skip


def betas(options: argparse.Namespace) -> None:
    """The plans that each beta gives, and that of time, as they run."""
    for name in options.only or NETWORKS:
        model = (name, (), 0)
        workload = priced(model)
        for p in options.processes:
            print(f"\n**{name}**, {workload.n} operators")
            mesh = measured_mesh(p)
            timed = Sharding(mesh)
            kinds: dict[bytes, tuple[list[str], Plan]] = {}
            for beta in (None, 0.0, 0.1, 1.0, 10.0, 100.0, 1000.0):
                label = "time" if beta is None else f"β = {beta:g}"
                problem = timed if beta is None else replace(timed, objective="distpar", beta=beta)
                plan = plan_of(workload, problem)
                key = plan.solution.signature.tobytes()  # type: ignore[union-attr]
                kinds.setdefault(key, ([], plan))[0].append(label)
            done = ran(workload, model, [plan for _, plan in kinds.values()], options.seconds)
            table([(", ".join(labels), seconds_of(workload, plan, mesh), one)
                   for (labels, plan), one in zip(kinds.values(), done, strict=True)])  # fmt: skip


def faces(options: argparse.Namespace) -> None:
    """Classes and batches: data parallel, classes split, and what auto does."""
    for p in options.processes:
        mesh = measured_mesh(p)
        print("| batch | classes | data parallel | classes split | auto | weight in auto |")
        print("|---|---|---|---|---|---|")
        for batch, classes in itertools.product(options.batches, options.classes):
            model = ("head", (options.features, classes), batch)
            workload = priced(model)
            problem = Sharding(mesh)
            plans = [
                plan_of(workload, replace(problem, fixed=(("layers.0.weight", "B"),
                                                          ("addmm", "B,S0,B")))),
                plan_of(workload, replace(problem, fixed=(("layers.0.weight", "S0"),
                                                          ("addmm", "S0,B,S1")))),
                plan_of(workload, problem),
            ]  # fmt: skip
            done = ran(workload, model, plans, options.seconds)
            report = evaluate(workload, plans[2].cluster, problem, plans[2].solution)
            (weight,) = (
                "x".join(report.lying[o.outputs[0]])  # type: ignore[attr-defined]
                for o in workload.program.operators  # type: ignore[union-attr]
                if str(o.name).endswith("weight")
            )
            cells = [
                f"{plan.objective:.4g} predicted, {1e3 * one.least:.4g} least, "
                f"{1e3 * one.busy:.4g} CPU"
                for plan, one in zip(plans, done, strict=True)
            ]
            print(f"| {batch} | {classes} |", " | ".join(cells), f"| {weight} |", flush=True)


def scaling(options: argparse.Namespace) -> None:
    """One batch on more and more processes: data parallel, and what auto does."""
    for p in (1, *options.processes):
        mesh = measured_mesh(p) if p > 1 else DeviceMesh((1,), (Link(0.0, 1e9),))
        for name in options.only or SCALED:
            model = (name, (), 0)
            workload = priced(model)
            methods = ("auto", "data-parallel")
            plans = [plan_of(workload, Sharding(mesh), method) for method in methods]
            done = ran(workload, model, plans, options.seconds)
            table([(method, plan.objective, one)
                   for method, plan, one in zip(methods, plans, done, strict=True)])  # fmt: skip
            row = {"model": name, "processes": str(p)}
            for method, plan, one in zip(("best", "data_parallel"), plans, done, strict=True):
                row[f"{method}_predicted_ms"] = f"{plan.objective:.4g}"
                row[f"{method}_least_ms"] = f"{1e3 * one.least:.4g}"
                row[f"{method}_cpu_ms"] = f"{1e3 * one.busy:.4g}"
            write("sharding_run_scaling", [row], "0", keys=("model", "processes"))


def random_plan(workload: Workload, mesh: DeviceMesh, seed: int) -> Plan:
    """Return a sharding in which every operator computes as chance has it; buffers are copied."""
    plan = plan_of(workload, Sharding(mesh), "replicate")
    task = pose(workload, plan.cluster, plan.problem)
    draw = random.Random(seed)
    rows = [c.signature[draw.randrange(len(c.cost))] for c in sharding_costs(task).choices]
    for v, operator in enumerate(workload.program.operators):  # type: ignore[union-attr]
        if operator.kind == "buffer":
            rows[v] = np.full(len(mesh.shape), [s.text for s in operator.signatures].index("->B"))
    solution = TensorSharding(np.array(rows))
    found = evaluate(workload, plan.cluster, plan.problem, solution)
    return replace(plan, solution=solution, objective=found.objective, bound=0.0, method="random")


#: What torch counts a collective as.
COUNTED = {
    "all-gather": "all_gather_into_tensor",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all_single",
    "reduce-scatter": "reduce_scatter_tensor",
}


def sent_bytes(options: argparse.Namespace) -> None:
    """What is sent, and how often, against the plan; statistics of operators are counted apart."""
    print("| model | operators | mesh | plan | conversions | planned bytes | sent bytes | as torch "
          "counts them |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for name in options.only or FAMILIES:
        model = (name, (), 0)
        module, inputs = made_again(*model)
        workload = stagecut.tensor_program(module, inputs, estimate="h100", name=name)
        for shape in ((2,), (4,), (2, 2)):
            mesh = DeviceMesh(shape, (Link(1e-7, 1e11),) * len(shape))
            cheap = Sharding(mesh, "distpar", beta=1.0)
            plans = {
                "auto (distpar)": plan_of(workload, cheap),
                "data-parallel": plan_of(workload, Sharding(mesh), "data-parallel"),
                "megatron": plan_of(workload, Sharding(mesh), "megatron"),
                "random": random_plan(workload, mesh, 1),
            }
            done = ran(workload, model, list(plans.values()), 0.0)
            for (label, plan), one in zip(plans.items(), done, strict=True):
                report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
                steps = [s for c in report.converted for s in c.steps if s.bytes]  # type: ignore[attr-defined]
                added = sum(size for size, _ in report.added)  # type: ignore[attr-defined]
                planned = sum(step.bytes for step in steps) + added
                wanted: dict[str, int] = {}
                for step in steps:
                    wanted[COUNTED[step.collective]] = wanted.get(COUNTED[step.collective], 0) + 1
                extra = {k: one.counted.get(k, 0) - wanted.get(k, 0) for k in COUNTED.values()}
                within = extra.pop("all_reduce")
                assert planned == one.sent, (name, label, planned, one.sent)
                assert not any(extra.values()), (name, label, extra)
                assert within >= 0, (name, label, within)
                assert (within > 0) == (added > 0), (name, label, within, added)
                counts = ", ".join(f"{n} {k}" for k, n in sorted(one.counted.items()))
                print(f"| {name} | {workload.n} | {mesh.text} | {label} | {len(steps)} "
                      f"| {planned:,.0f} | {one.sent:,.0f} | {counts} |", flush=True)  # fmt: skip


WHAT: dict[str, Callable[[argparse.Namespace], None]] = {
    "bytes": sent_bytes, "vgg": vgg, "beta": betas, "faces": faces, "scaling": scaling,
}  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=sorted(WHAT))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--processes", nargs="*", type=int, default=[2, 4])
    parser.add_argument(
        "--classes", nargs="*", type=int, default=[1000, 10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--batches", nargs="*", type=int, default=[8, 64])
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--full", action="store_true", help="VGG16's own widths.")
    parser.add_argument("--seconds", type=float, default=1.0, help="For each plan.")
    given = parser.parse_args()
    WHAT[given.what](given)
