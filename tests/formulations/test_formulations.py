"""The integer programs as stated: what is left out, what their rows are called and say."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import ModuleType

import numpy as np
import pyomo.environ as pyo
import pytest
from brute import best_max_load
from brute_iteration import SCHEDULES, training_case
from brute_mapping import stages_of
from brute_sharding import random_problem, random_program
from cases import THROUGHPUT_PROBLEMS, linked_case, random_case
from training_cases import random_training_case

from stagecut import (
    InfeasibleError,
    Latency,
    Limits,
    PipelineJob,
    Throughput,
    accelerators_and_cpus,
)
from stagecut.formulations.job import iteration_milp
from stagecut.formulations.job import stream_milp as training_milp
from stagecut.formulations.job.stream import state_staging
from stagecut.formulations.latency import milp
from stagecut.formulations.latency import milp as links
from stagecut.formulations.latency import milp as potentials
from stagecut.formulations.linear import Linear
from stagecut.formulations.mapping import busiest_link as mapping_islands
from stagecut.formulations.mapping import joint, message_program, ring_program
from stagecut.formulations.mapping import milp as mapping_milp
from stagecut.formulations.mapping import milp as places
from stagecut.formulations.mapping.bound import pair_upper_bounds, stage_lower_bounds
from stagecut.formulations.mapping.busiest_link import link_traffic
from stagecut.formulations.mapping.costs import find_blocks, mapping_costs, stage_times
from stagecut.formulations.mapping.joint import joint_data
from stagecut.formulations.schedule import milp as schedule_milp
from stagecut.formulations.sharding import milp as sharding_milp
from stagecut.formulations.sharding.costs import sharding_costs
from stagecut.formulations.task import pose
from stagecut.formulations.throughput import compact as compact_module
from stagecut.formulations.throughput import set_partitioning
from stagecut.formulations.throughput.compact import compact
from stagecut.formulations.throughput.hypergraph import hypergraph
from stagecut.instances import DeviceMapping, stage_costs, topology
from stagecut.instances.common.arrays import Floats
from stagecut.solvers.core.compiled_model import compile_model
from stagecut.solvers.core.highs import run_highs
from stagecut.solvers.core.search import Search


@pytest.mark.parametrize("chunk", range(4))
def test_what_exceeds_the_cutoff_has_no_coefficient_and_no_better_placement(chunk: int) -> None:
    for seed in range(24 * chunk, 24 * (chunk + 1)):
        for make in (random_case, linked_case):
            workload, cluster = make(seed, max_nodes=6, max_cores=1, max_kinds=1 + seed % 2)
            dear = np.where(np.random.default_rng(seed).random(workload.n) < 0.4, 1e10, 1.0)
            if workload.transfer is None:
                workload = replace(workload, output_bytes=workload.output_bytes * dear)
            else:
                workload = replace(workload, transfer=workload.transfer * dear)
            problem = THROUGHPUT_PROBLEMS[seed % len(THROUGHPUT_PROBLEMS)]
            best = best_max_load(workload, cluster, problem)
            if not 0 < best < 1e6:
                continue
            stated = compact(pose(workload, cluster, problem), reference=best, cutoff=best)
            linear = compile_model(stated.model).linear
            where = f"seed {seed}: {problem}"
            assert linear is not None, where
            assert np.abs(linear.matrix.data).max() < 1.1e4, where
            never: Search[object] = Search(Limits(), lambda _: math.inf)
            outcome = run_highs(linear, never, gap=0.0)
            assert outcome.objective * stated.scale == pytest.approx(best, rel=1e-6), where


def stated_models() -> Iterator[tuple[str, tuple[ModuleType, ...], pyo.ConcreteModel]]:
    """Every program in Pyomo, with all its options somewhere, and the modules that state it."""
    texts = (compact_module,)
    for seed in range(24):
        for make in (random_case, linked_case):
            workload, cluster = make(seed, max_nodes=6, max_cores=2, max_kinds=2)
            for problem in (
                THROUGHPUT_PROBLEMS[seed],
                replace(THROUGHPUT_PROBLEMS[seed], split="contiguous"),
            ):
                with suppress(InfeasibleError):
                    stated = compact(pose(workload, cluster, problem), cutoff=2.0, floor=0.1)
                    yield f"compact {seed}", texts, stated.model
        make = linked_case if seed % 2 else random_case
        workload, cluster = make(seed, max_nodes=5, max_kinds=2)
        task = pose(workload, cluster, Latency(calls=1 + seed // 2 % 2))
        texts = (milp, links, potentials)
        yield (
            f"latency {seed}",
            texts,
            milp.latency_model(task, 100.0, 0.1, potentials=True).model,
        )
        texts = (compact_module,)
        parts = random_training_case(seed, max_nodes=4, max_devices=4, kinds=1 + seed % 2)
        with suppress(InfeasibleError):
            staging = state_staging(pose(*parts))
            stated_training = training_milp.stream_model(staging, 1.0)
            yield f"training {seed}", (training_milp,), stated_training.model
        workload, cluster = training_case(np.random.default_rng(seed), kinds=1)
        schedule = SCHEDULES[seed % len(SCHEDULES)]
        ordered = PipelineJob(2 + seed % 3, schedule, relayed=seed % 4 == 0)
        with suppress(InfeasibleError):
            stated_chains = iteration_milp.iteration_model(
                pose(workload, cluster, ordered), floor=0.1
            )
            yield f"iteration {seed}", (iteration_milp,), stated_chains.model
        workload, cluster = random_case(seed, max_nodes=5)
        task = pose(workload, cluster, Throughput())
        stated_sets = set_partitioning.model(task, hypergraph(task))
        yield f"set partitioning {seed}", (set_partitioning,), stated_sets
    for seed in range(12):
        rng = np.random.default_rng([seed, 3])
        workload = random_program(rng)
        sharded = replace(random_problem(rng), memory_bytes=1e3)
        costs = sharding_costs(pose(workload, accelerators_and_cpus(4), sharded))
        stated_sharding = sharding_milp.sharding_model(costs, 1.0, strong=seed % 2 == 0)
        yield f"sharding {seed}", (sharding_milp,), stated_sharding.model
    steps = [("F", 1.0, 1.0), ("B", 2.0, -1.0)]
    operations = tuple(
        schedule_milp.StagePass(f"{s}{name}{k}", s, time, held)
        for s in (0, 1)
        for k in (0, 1)
        for name, time, held in steps
    )
    instance = schedule_milp.ScheduleInstance(
        operations, ((0, 4), (2, 6), (5, 1), (7, 3)), (2.0, 2.0)
    )
    yield "schedule", (schedule_milp,), schedule_milp.schedule_model(instance, 20.0).model
    for overlap in (False, True):
        workload = stages_of(np.random.default_rng(0), 3, free=False)
        place = topology("islands:2x4")
        problem = DeviceMapping(place, 2, 3, "both", collective="ring", overlap=overlap)
        costs = stage_costs(workload, np.array([0, 0, 1]), 2)
        traffic = link_traffic(costs, problem)
        arrays = mapping_costs(costs, problem)
        texts = (mapping_milp, places, joint)
        yield "mapping", texts[:2], mapping_milp.mapping_milp(arrays, 1e3).model
        yield "links", texts[:2], mapping_milp.mapping_milp(arrays, 1e3, traffic).model
        limited = replace(problem, topology=replace(place, memory_bytes=np.zeros(place.size)))
        heavy = replace(workload, memory_bytes=np.ones(workload.n))
        data = joint_data(pose(heavy, accelerators_and_cpus(place.size, memory_bytes=2.0), limited))
        yield "joint", texts[1:], joint.joint_milp(data, problem, 1e3).model
        names = np.unique(place.island)
        islands = mapping_islands.island_milp(problem, traffic, names, 1e3)
        yield "islands", (mapping_islands,), islands


def test_every_variable_and_every_equation_stands_in_the_text() -> None:
    seen: dict[str, set[str]] = {}
    for where, modules, model in stated_models():
        lines = [line for module in modules for line in (module.__doc__ or "").splitlines()]
        numbers: dict[str, str] = {}
        for variable in model.component_objects(pyo.Var):
            named = re.compile(rf"  {variable.name}(\[.*)?$")
            assert any(named.search(line) for line in lines), f"{where}: {variable.name}"
        for constraint in model.component_objects(pyo.Constraint):
            rule = constraint.rule._fcn
            assert rule.__name__ == constraint.name, f"{where}: {constraint.name}"
            said = re.match(r"\((\d+)\) .", rule.__doc__ or "")
            assert said, f"{where}: {constraint.name} has no equation"
            assert any(line.endswith(f"({said[1]})") for line in lines), f"{where}: ({said[1]})"
            assert numbers.setdefault(said[1], constraint.name) == constraint.name, where
        seen.setdefault(where.split()[0], set()).update(numbers)
    counts = {"compact": 27, "latency": 23, "training": 18, "set": 3, "schedule": 5}
    counts |= {"iteration": 18, "sharding": 11}
    counts |= {"mapping": 12, "links": 11, "joint": 24, "islands": 8}
    assert {name: len(rules) for name, rules in seen.items()} == counts


def broken_rows(linear: Linear, x: Floats) -> list[str]:
    activity = np.asarray(linear.matrix @ x)
    broken = (activity < linear.row_lower - 1e-6) | (activity > linear.row_upper + 1e-6)
    return [linear.row_names[i] for i in np.flatnonzero(broken)]


def test_every_row_of_an_array_program_has_its_equation_and_a_known_mapping_keeps_it() -> None:
    names: dict[ModuleType, set[str]] = {}
    for text, stages, replicas, mode in (
        ("random_blk_1:16", 4, 4, "both"),
        ("random_blk_2:16@seed=3", 2, 8, "allr"),
        ("uniform_dist:16@seed=5", 4, 4, "p2p"),
        ("random_blk_1:32@seed=4", 4, 8, "p2p"),
        ("random_blk_1:48", 2, 20, "allr"),  # rings in three blocks
    ):
        workload = stages_of(np.random.default_rng(1), stages, free=False)
        problem = DeviceMapping(topology(text), stages, replicas, mode, collective="ring")  # type: ignore[arg-type]
        costs = mapping_costs(stage_costs(workload, np.arange(stages), stages), problem)
        block, lower_bounds = find_blocks(costs), stage_lower_bounds(costs, lambda: False)
        slots = np.arange(costs.size)[: stages * replicas].reshape(stages, replicas)
        straight = np.tile(np.arange(replicas), (stages - 1, 1))
        threshold = float(stage_times(costs, slots, straight).max()) * (1 + 1e-9)
        bounds = pair_upper_bounds(costs, lower_bounds, threshold)
        assert bounds is not None
        programs = []
        admitted = {}
        for s in np.flatnonzero(costs.boundary.any(axis=1)).tolist():
            admitted[s] = costs.boundary_costs(s) <= np.median(costs.boundary_costs(s))
            np.fill_diagonal(admitted[s], False)
        fits = np.ones((stages, costs.size), np.bool_)
        if admitted:
            alone = ring_program.RingProgram(costs, block)
            message_program.message_program(admitted, fits, block, replicas, alone)
            programs.append((message_program, alone.rows.build()))
        rings = ring_program.RingProgram(costs, block)
        for s in np.flatnonzero(costs.ring.any(axis=1)).tolist():
            pairs = costs.ring_costs(s) <= np.median(costs.ring_costs(s))
            np.fill_diagonal(pairs, False)
            cell = ring_program.cells_of(pairs, block, replicas)
            if cell is not None:
                rings.add(s, pairs, cell)
        if rings.rings and admitted:
            joined = ring_program.RingProgram(costs, block)
            pairs = costs.ring_costs(0) <= np.quantile(costs.ring_costs(0), 0.7)
            np.fill_diagonal(pairs, False)
            cell = ring_program.cells_of(pairs, block, replicas)
            assert cell is not None
            joined.add(0, pairs, cell)
            own = len(joined.rows.build().row_names)
            message_program.message_program(admitted, fits, block, replicas, joined)
            stems = {name.split("[")[0] for name in joined.rows.build().row_names[own:]}
            names.setdefault(message_program, set()).update(stems)
        if rings.rings:
            programs.append((ring_program, rings.rows.build()))
        for module, linear in programs:
            assert len(linear.row_names) == len(linear.row_lower) == linear.matrix.shape[0]
            assert len(set(linear.row_names)) == len(linear.row_names)
            names.setdefault(module, set()).update(n.split("[")[0] for n in linear.row_names)
    for module, stems in names.items():
        stated_names = set(re.findall(r"\(\d+\) (\w+)$", module.__doc__ or "", re.MULTILINE))
        assert stems == stated_names, module.__name__
