"""Cells and parts of each problem's `auto` for `ablate.py`: published and shipped workloads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from clocks import cpu_clock

from stagecut import Cluster, PipelineJob, Throughput, Workload, accelerators_and_cpus, load

PUBLISHED = Path(os.environ.get("STAGECUT_BENCHMARKS", "../shared/benchmarks")) / "placement"
Case = tuple[Workload, Cluster | None, Any]


@dataclass(frozen=True)
class Cell:
    """A workload, a cluster, a problem and a method; `ties` only breaks ties."""

    make: Callable[[], Case]
    ties: tuple[object, str] | None = None
    method: str = "auto"


@dataclass(frozen=True)
class Part:
    """Functions of a strategy, what stands in for them, and those whose calls show its use."""

    sites: tuple[tuple[object, str], ...]
    instead: Any
    entries: tuple[tuple[object, str], ...] = ()
    #: Of the calls of the entries, those that are of this part.
    counts: Callable[..., bool] = lambda *_, **__: True


def nothing(*_args: object, **_options: object) -> None:
    """Do nothing."""


def none_of(*_args: object, **_options: object) -> Iterator[object]:
    """Yield nothing."""
    yield from ()


def _published(path: str, problem: Any) -> Cell:
    return Cell(lambda: (load(PUBLISHED / path), None, problem))


def _shipped(name: str, devices: int, problem: Any) -> Cell:
    return Cell(lambda: (load(name), accelerators_and_cpus(devices), problem))


def throughput() -> tuple[dict[str, Cell], dict[str, Part]]:
    """Published graphs, and large ones of five families, in both splits."""
    from stagecut.solvers.throughput import auto, set_partitioning
    from stagecut.solvers.throughput.column_generation import column_generation
    from stagecut.solvers.throughput.multilevel import multilevel

    anyhow, contiguous = Throughput("noncontiguous"), Throughput("contiguous")
    cells = {
        name: _published(f"throughput/{kind}Graphs/{file}.json", anyhow)
        for name, kind, file in (
            ("InceptionV3 layers", "Layer", "inceptionv3_inference"),
            ("ResNet-50 layers", "Layer", "resnet50_inference"),
            ("GNMT layers, training", "Layer", "gnmt_training"),
            ("BERT-12 operators, training", "Operator", "bert_L-12_training"),
            ("BERT-12 operators", "Operator", "bert_l-12_inference"),
            ("ResNet-50 operators, training", "Operator", "resnet50_training"),
        )
    }
    for name, split in (
        ("t5-large-operators-training@deeper=5", anyhow),
        ("t5-large-operators-training@deeper=5", contiguous),
        ("stable-diffusion-unet-operators-training@deeper=10", anyhow),
        ("stable-diffusion-unet-operators-training@deeper=10", contiguous),
        ("mixtral-8x7b-operators-training@deeper=3", anyhow),
        ("mixtral-8x7b-operators-training@deeper=3", contiguous),
        ("mixtral-8x7b-operators-training", contiguous),
        ("gpt2-xl-operators-training@deeper=7", anyhow),
    ):
        cells[f"{name} {split.split}"] = Cell(partial(_suggested, name, split))
    hubs = ((multilevel, "raise_by_hubs"),)
    path = ((multilevel, "raise_by_critical_path"),)
    least = ((multilevel, "raise_by_least_load"),)
    parts = {
        "hubs": Part(hubs, nothing),
        "least load": Part(least, nothing),
        "critical path": Part(path, nothing),
        "hubs, critical path, least load": Part((*hubs, *path, *least), nothing),
        "pairs of devices": Part(((multilevel, "_pairs"),), nothing),
        "moves under links": Part(((auto, "improve_linked"),), nothing),
        "sets by value": Part(
            ((set_partitioning, "BY_VALUE_GAP"),),
            -1.0,
            ((column_generation, "best_set_by_value"),),
        ),
    }
    return cells, parts


def _suggested(name: str, problem: Throughput) -> Case:
    return load(name), None, problem


def iteration() -> tuple[dict[str, Cell], dict[str, Part]]:
    """Shipped training workloads of six families, under four schedules."""
    from stagecut.solvers.job.iteration import exact
    from stagecut.solvers.job.iteration import exact as prove

    cells = {
        f"{name} K={devices} M={microbatches} {schedule}": _shipped(
            f"{name}-training", devices, PipelineJob(microbatches, schedule)
        )
        for name, devices, microbatches, schedule in (
            ("semantic-fpn", 8, 8, "1f1b"),
            ("semantic-fpn", 8, 32, "interleaved"),
            ("t5-large", 8, 8, "interleaved"),
            ("t5-large", 16, 64, "1f1b"),
            ("resnet50", 8, 32, "interleaved"),
            ("resnet50", 8, 8, "zb-h1"),
            ("gpt2-xl", 8, 32, "1f1b"),
            ("gpt2-xl", 16, 64, "interleaved"),
            ("unet", 4, 16, "gpipe"),
            ("stable-diffusion-unet", 8, 32, "1f1b"),
            ("mixtral-8x7b", 8, 32, "interleaved"),
            ("vit-l16", 8, 8, "zb-h1"),
        )
    }
    parts = {
        "annealing": Part(((prove, "restarts"),), none_of),
        "best first": Part(((prove, "best_first"),), none_of),
        "chains of one order first": Part(((exact, "_first_chains"),), nothing),
        "splits of frameworks": Part(((exact, "first_plans"),), nothing),
    }
    return cells, parts


def latency() -> tuple[dict[str, Cell], dict[str, Part]]:
    """Published graphs with one and two calls, and large ones of three families."""
    from stagecut import Latency
    from stagecut.solvers.latency import auto

    cells = {}
    for kind, file in (
        ("Layer", "bert24_inference"),
        ("Layer", "gnmt_inference"),
        ("Layer", "resnet50_inference"),
        ("Operator", "bert_l-12_inference"),
        ("Operator", "resnet50_inference"),
    ):
        for calls in (1, 2):
            name = f"{file} {kind.lower()}s, calls {calls}"
            cells[name] = _published(f"latency/{kind}Graphs/{file}.json", Latency(calls))
    for name in (
        "t5-large-operators-training",
        "stable-diffusion-unet-operators",
        "gpt2-xl-operators-training",
        "gpt2-xl-operators-training@deeper=2",
        "mixtral-8x7b-operators",
    ):
        cells[name] = Cell(partial(_suggested, name, Latency()))
    parts = {
        "path bound of large graphs": Part(((auto, "raise_path_bound"),), nothing),
        "linear DP": Part(((auto, "linear"),), nothing),
        "local search": Part(((auto, "local_search"),), nothing),
    }
    return cells, parts


def sharding() -> tuple[dict[str, Cell], dict[str, Part]]:
    """Traced models on two meshes, without a limit of memory and with nine tenths of the need."""
    from sharding_models import MODELS

    from stagecut.solvers.sharding import auto, priced_memory

    cells = {
        f"{name} {mesh}{' of memory' * bool(part)}": Cell(partial(_sharded, name, mesh, part))
        for name in MODELS
        if name != "vgg-head"
        for mesh in ("8", "2x4")
        for part in (None, 0.9)
    }
    parts = {
        "elimination": Part(((auto, "eliminate_all"),), nothing),
        "messages": Part(((auto, "better_by_messages"),), nothing),
        "elimination of what fits": Part(((auto, "least_cost_that_fits"),), nothing),
        "blend": Part(((priced_memory, "blend"),), nothing),
    }
    return cells, parts


def _sharded(name: str, mesh: str, part: float | None) -> Case:
    """Return a traced model; `part` of the memory that its best sharding takes without a limit."""
    from sharding import mesh_of, program

    from stagecut import Limits, Sharding, evaluate, solve

    workload, problem = program(name), Sharding(mesh_of(mesh))
    if part is not None:
        with cpu_clock():  # else the memory would depend on other load
            limits = Limits(seconds=20, since=time.process_time())
            free = solve(workload, problem=problem, limits=limits, workers=1)
        assert free.plan is not None
        report = evaluate(workload, free.plan.cluster, problem, free.plan.solution)
        held = report.memory_bytes
        problem = replace(problem, memory_bytes=part * held)
    return workload, None, problem


NETWORK = "semantic-fpn-operators-training"


def mapping() -> tuple[dict[str, Cell], dict[str, Part]]:
    """Semantic FPN's operators cut into S stages of R replicas, on six kinds of topologies."""
    from stagecut.solvers.mapping import auto, bottleneck_stages, state
    from stagecut.solvers.mapping.annealing import targets
    from stagecut.solvers.mapping.parameters import EARLY_ROUNDS

    cells = {
        f"{topology} {s} × {r} {mode}{', ' * bool(kind)}{kind}": Cell(
            partial(_mapped, topology, s, r, mode, kind),
            (auto, "break_ties"),
            "joint" if kind == "joint" else "auto",
        )
        for topology, s, r, mode, kind in (
            ("torus3d:8x8x8", 16, 32, "allr", ""),
            ("random_blk_1:16", 4, 4, "both", ""),
            ("random_blk_1:16", 8, 2, "both", ""),
            ("random_blk_2:16", 2, 8, "both", ""),
            ("uniform_dist:16", 4, 4, "both", "cheapest"),
            ("random_blk_1:64", 8, 8, "p2p", ""),
            ("random_blk_2:64", 16, 4, "p2p", ""),
            ("random_blk_1:128", 8, 16, "p2p", ""),
            ("uniform_dist:64", 8, 8, "p2p", ""),
            ("random_blk_2:64", 8, 8, "allr", ""),
            ("random_blk_1:64", 4, 16, "both", ""),
            ("random_blk_1:64", 16, 4, "both", ""),
            ("random_blk_2:64", 8, 8, "both", ""),
            ("random_blk_1:128", 8, 16, "both", ""),
            ("uniform_dist:64", 8, 8, "both", ""),
            ("random_blk_2:64", 8, 8, "both", "cheapest"),
            ("islands:4x8", 4, 8, "both", "cheapest"),
            ("fattree:4", 2, 8, "both", "cheapest"),
            ("islands:4x8", 4, 8, "both", "busiest-link"),
            ("islands:2x8", 4, 4, "both", "joint"),
            ("random_blk_1:32", 4, 8, "both", "joint"),
        )
    }

    def as_they_are(
        _costs: object, slots: np.ndarray, sends_to: np.ndarray, *_: object, **__: object
    ) -> tuple[np.ndarray, np.ndarray]:
        return slots, sends_to

    def start(name: str) -> Part:
        every = targets.start_strategies

        def others(mapping: state.MappingState) -> list[targets.StartStrategy]:
            return [each for each in every(mapping) if each.run.__name__.lstrip("_") != name[1:]]

        return Part(((auto, "start_strategies"),), others, ((targets, name),))

    def rounds(wanted: int) -> Part:
        every = targets.anneal_targets

        def others(mapping: state.MappingState, starts: Any, rounds: int | None = None) -> None:
            if rounds != wanted:
                every(mapping, starts, rounds)

        return Part(
            ((auto, "anneal_targets"),),
            others,
            counts=lambda *_, rounds=None, **__: rounds == wanted,
        )

    parts = {
        "layouts": Part(((state, "layouts"),), none_of),
        "segments": Part(((state.MappingState, "bound_segments"),), nothing),
        "thresholds": Part(((state.MappingState, "bound_thresholds"),), nothing),
        "programs": Part(
            ((bottleneck_stages, "bottleneck_programs"),),
            nothing,
            ((bottleneck_stages, "branch_on_splits"),),
        ),
        "exact": Part(((auto, "_exact"),), nothing),
        "annealing before bounds": rounds(EARLY_ROUNDS),
        "start: count model": start("_from_count_model"),
        "start: on from the last": start("_continue"),
        "start: incumbent": start("_from_incumbent"),
        "weights of counts": Part(((targets, "update_weights"),), nothing),
        "descents": Part(((targets, "_descent"),), nothing),
        "descents of orders": Part(((state, "descend"),), as_they_are),
    }
    return cells, parts


def _mapped(topology_name: str, stages: int, replicas: int, mode: Any, kind: str) -> Case:
    from mapping import as_chain

    from stagecut import DeviceMapping
    from stagecut.instances import stage_costs
    from stagecut.instances.topologies import topology
    from stagecut.solvers.mapping.partition import balanced_partition

    if topology_name.startswith(("random", "uniform")):
        topology_name += "@seed=0"
    devices = topology(topology_name)
    if kind == "joint":
        joint = DeviceMapping(devices, stages, replicas, mode, microbatches=4, collective="ring")
        return load(NETWORK), None, joint
    workload = load(NETWORK)
    chain = as_chain(stage_costs(workload, balanced_partition(workload, stages), stages))
    problem = DeviceMapping(
        devices,
        stages,
        replicas,
        mode,
        gradients=False,
        collective="cheapest" if kind == "cheapest" else "ring",
        objective="busiest-link" if kind == "busiest-link" else "stage-time",
    )
    return chain, None, problem


PROBLEMS: dict[str, Callable[[], tuple[dict[str, Cell], dict[str, Part]]]] = {
    "throughput": throughput,
    "iteration": iteration,
    "latency": latency,
    "sharding": sharding,
    "mapping": mapping,
}
