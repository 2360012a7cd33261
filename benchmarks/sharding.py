"""Shardings of traced models on meshes: objective, bound, gap, baselines, CPU seconds.

    PYTHONPATH=.dev python benchmarks/sharding.py models [--only gpt2] [--meshes 8 2x4 4x8]
    PYTHONPATH=.dev python benchmarks/sharding.py vgg        all 27 of D, R, C against auto
    PYTHONPATH=.dev python benchmarks/sharding.py faces      from data to model parallel
    PYTHONPATH=.dev python benchmarks/sharding.py beta       which beta gives the least time

Times are an H100's roofline. Links have 10 µs and 450 GB/s within machines, and 20 µs and 50 GB/s
between them.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import replace

import torch
from sharding_models import MODELS, faces

import stagecut
from stagecut import DeviceMesh, Limits, Link, Sharding, Workload, evaluate, solve

FAST, SLOW = Link(10e-6, 450e9), Link(20e-6, 50e9)
RULES = ("data-parallel", "fully-sharded", "megatron", "replicate", "communication-only")


def program(name: str) -> Workload:
    """Trace a model."""
    made, inputs = MODELS[name]()
    return stagecut.tensor_program(made, inputs, estimate="h100", name=name)


def mesh_of(text: str) -> DeviceMesh:
    """Return a mesh: the last axis is within a machine."""
    shape = tuple(map(int, text.split("x")))
    return DeviceMesh(shape, (*(SLOW,) * (len(shape) - 1), FAST))


def models(options: argparse.Namespace) -> None:
    """Every model on every mesh."""
    print(
        "| model | operators | mesh | objective ms | bound | gap | by | CPU s |", *RULES, sep=" | "
    )
    for name in options.only or [n for n in MODELS if n != "vgg-head"]:
        workload = program(name)
        assert workload.program is not None
        for text in options.meshes:
            problem = Sharding(mesh_of(text))
            began = time.process_time()
            limits = Limits(seconds=options.seconds)
            result = solve(workload, problem=problem, limits=limits, workers=1)
            cpu = time.process_time() - began
            others = []
            for rule in RULES[: None if text.count("x") == 0 else -1]:
                found = solve(workload, problem=problem, method=rule)
                others.append("" if found.objective is None else f"{found.objective:.4g}")
            assert result.objective is not None
            print(
                f"| {name} | {workload.n} | {text} | {result.objective:.5g} | {result.bound:.5g} "
                f"| {result.gap:.2%} | {result.method} | {cpu:.1f} |",
                *others, sep=" | ", flush=True,
            )  # fmt: skip


def vgg(_: argparse.Namespace) -> None:
    """All 27 combinations of data, row and column parallelism against auto."""
    workload = program("vgg-head")
    assert workload.program is not None
    names = [f"layers.{k}" for k in range(3)]
    matmul = [o for o in workload.program.operators if o.kind == "aten.addmm"]
    lies = {"D": "B", "R": "S1", "C": "S0"}
    ways = {"D": "B,S0,B", "R": "P,S1,S0", "C": "S0,B,S1"}
    for p in (2, 4, 8):
        for link in (FAST, SLOW):
            mesh = DeviceMesh((p,), (link,))
            best = solve(workload, problem=Sharding(mesh)).objective
            costs = {}
            for letters in itertools.product("DRC", repeat=3):
                fixed = [(f"{n}.weight", lies[c]) for n, c in zip(names, letters, strict=True)]
                fixed += [(o.name, ways[c]) for o, c in zip(matmul, letters, strict=True)]
                problem = Sharding(mesh, fixed=tuple(fixed))
                costs["".join(letters)] = solve(workload, problem=problem).objective or 0.0
            order = sorted(costs, key=lambda k: costs[k])
            shown = ", ".join(f"{k} {costs[k]:.5g}" for k in (*order[:4], order[-1]))
            print(f"p={p} {link.bytes_per_s / 1e9:.0f} GB/s: auto {best:.5g}; {shown}; "
                  f"DDD {costs['DDD']:.5g}, RCR {costs['RCR']:.5g}", flush=True)  # fmt: skip


def face_heads(_: argparse.Namespace) -> None:
    """Classes and batches: which rule is best, and what auto does."""
    for batch, classes in itertools.product((8, 64), (1000, 10_000, 100_000, 1_000_000)):
        made, inputs = faces(classes, batch)
        workload = stagecut.tensor_program(made, inputs, estimate="v100")
        problem = Sharding(DeviceMesh((8,), (Link(10e-6, 150e9),)))
        found = {m: solve(workload, problem=problem, method=m) for m in ("auto", *RULES[:3])}
        plan = found["auto"].plan
        assert plan is not None
        report = evaluate(workload, plan.cluster, problem, plan.solution)
        (weight,) = (
            "x".join(report.lying[o.outputs[0]])  # type: ignore[attr-defined]
            for o in workload.program.operators  # type: ignore[union-attr]
            if str(o.name).endswith("weight")
        )
        costs = ", ".join(f"{m} {r.objective:.4g}" for m, r in found.items())
        print(f"batch {batch}, {classes} classes: {costs}; weight {weight}", flush=True)


def betas(options: argparse.Namespace) -> None:
    """The time of the plans that each beta gives, against the plan for time."""
    for name in options.only or ["vgg-head", "gpt2", "resnet50"]:
        workload, mesh = program(name), mesh_of("8")
        timed = Sharding(mesh)
        found = []
        for beta in (0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0):
            plan = solve(workload, problem=replace(timed, objective="distpar", beta=beta)).plan
            assert plan is not None
            at = evaluate(workload, plan.cluster, timed, plan.solution).objective
            found.append(f"{beta:g}: {at:.5g}")
        print(f"{name}: auto {solve(workload, problem=timed).objective:.5g};", ", ".join(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["models", "vgg", "faces", "beta"])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--meshes", nargs="*", default=["8", "2x4", "4x8"])
    parser.add_argument("--seconds", type=float, default=60.0)
    torch.manual_seed(0)
    given = parser.parse_args()
    {"models": models, "vgg": vgg, "faces": face_heads, "beta": betas}[given.what](given)
