"""Plans and certificates that claim what is not so."""

from __future__ import annotations

import copy
import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from brute import best_max_load
from brute_sharding import random_problem, random_program
from cases import hub_case, random_case
from damage import ODD
from good_files import weighted
from training_cases import random_training_case

import stagecut
from stagecut import Cluster, Limits, Plan, Workload
from stagecut.instances import (
    DeviceMapping,
    Latency,
    PipelineJob,
    Problem,
    Throughput,
    UncheckedError,
    topology,
)
from stagecut.instances.common.errors import InputError, VerificationError
from stagecut.instances.formats.files import dumps, load_plan
from stagecut.instances.formats.plan_json import HUBS, PRICES
from stagecut.runtime import verify
from stagecut.runtime.verify.bounds.check import check_bound
from stagecut.solvers.throughput.multilevel import hub_bound as hub_sets

_GIVEN = PipelineJob(2, "given", actions=("0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1"))

#: What became of a changed plan: refused in one line; or its claims are true, by the definition.
Fate = Literal["refused", "true", "defect"]


def plans() -> list[tuple[Workload, Plan]]:
    """Return plans of every problem, on a few small workloads."""
    found = []
    for seed in range(40):
        workload, cluster = random_case(seed, max_nodes=6)
        for problem in (Throughput(), Throughput(split="contiguous", overlap=True), Latency()):
            method = "greedy"
            found.append((workload, _plan(workload, cluster, problem, method)))
        if seed % 4 == 0:
            found.append((workload, _plan(workload, cluster, PipelineJob(3), "dp")))
            found.append((workload, _plan(workload, cluster, _GIVEN, "auto")))
            rng = np.random.default_rng(seed)
            program, sharding = random_program(rng, 8), random_problem(rng)
            found.append((program, _plan(program, None, sharding, "messages")))
        layered, devices, training = random_training_case(seed)
        found.append((layered, _plan(layered, devices, training, "dp")))
    for name in ("mesh2d:2x2", "ring:5"):
        made = weighted()
        found.append((made, _plan(made, None, DeviceMapping(topology(name), 2, 2), "layouts")))
    return [(workload, plan) for workload, plan in found if plan is not None]


def changed(workload: Workload, plan: Plan, rng: random.Random) -> dict[str, Any]:
    """Return a plan's file with one claim of it changed, or any value."""
    document: dict[str, Any] = json.loads(dumps(plan, workload))
    objective = document["objective"]
    parts = next(iter(document["solution"].values()))
    match rng.randrange(8):
        case 0:
            document["objective"] = objective * rng.choice([0.5, 0.999, 1.001, 2.0]) + 1e-3
        case 1:
            document["bound"] = 1.01 * objective + 1e-3
            document["gap"] = 0.0
        case 2 if "nodes" not in parts[0]:  # an operator as another is
            rng.choice(parts)["signatures"] = rng.choice(parts)["signatures"]
        case 2:  # a node elsewhere
            node = _taken(rng.choice([part["nodes"] for part in parts if part["nodes"]]), rng)
            rng.choice(parts)["nodes"].append(node)
        case _:
            _change_any(document, rng)
    return document


def _taken(nodes: list[Any], rng: random.Random) -> Any:
    """Return a node of a list that loses it."""
    return nodes.pop(rng.randrange(len(nodes)))


def _change_any(document: dict[str, Any], rng: random.Random) -> None:
    """Change a value anywhere in a file: an odd one, none, more, less, or in another order."""
    holders: list[Any] = [document]
    for holder in holders:  # which grows meanwhile
        values = holder.values() if isinstance(holder, dict) else holder
        holders += [value for value in values if isinstance(value, dict | list) and value]
    holder = rng.choice(holders)
    key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    value, how = holder[key], rng.randrange(4)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(value, int | float):
        holder[key] = value * rng.choice([-1, 0.5, 0.999, 1.001, 2])
    elif how == 1 and isinstance(value, list):
        holder[key] = rng.choice([value[1:], value[::-1], value + copy.deepcopy(value[-1:])])
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD))


def fate(workload: Workload, document: dict[str, Any], folder: Path) -> Fate:
    """Return what becomes of a changed plan.

    Raises
    ------
    AssertionError
        If it is accepted, and what it claims is not what the plan is by definition.
    Exception
        Whatever else happens: a defect.
    """
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    try:
        made = load_plan(path, workload)
        report = verify(workload, made)
        with suppress(UncheckedError):
            check_bound(workload, made)
    except (InputError, VerificationError) as error:
        return "refused" if str(error).isprintable() else "defect"
    assert not report.violations
    assert made.bound <= made.objective * (1 + 1e-6)
    assert abs(report.objective - made.objective) <= 1e-6 * abs(report.objective) + 1e-9
    return "true"


def certified(count: int) -> list[tuple[Workload, Cluster, Plan, float]]:
    """Return plans whose bounds have certificates, and the optimum by trying all placements.

    By turns they are by prices, and by hubs, as which nodes of two outputs count meanwhile.
    """
    found: list[tuple[Workload, Cluster, Plan, float]] = []
    nets, hub_sets.HUB_NETS = hub_sets.HUB_NETS, 1
    for seed in range(100 * count):
        limits = Limits(nodes=6, seed=seed)
        origin = (PRICES, HUBS)[len(found) % 2]
        if origin == PRICES:
            workload, cluster = random_case(seed, max_nodes=6)
            problem = Throughput(overlap=seed % 3 == 0)
            method = "column-generation"
        else:
            workload, cluster = hub_case(seed)
            problem = Throughput(split="contiguous" if seed % 2 else "noncontiguous")
            method = "multilevel"
        result = stagecut.solve(workload, cluster, problem, method=method, limits=limits)
        if result.plan is not None and result.plan.certificate["origin"] == origin:
            best = best_max_load(workload, cluster, problem)
            if best > 0:
                found.append((workload, cluster, result.plan, best))
        if len(found) == count:
            break
    hub_sets.HUB_NETS = nets
    return found


def forged(plan: Plan, best: float, rng: random.Random) -> Plan:
    """Return the plan with a certificate for a bound above the optimum, or none that can be."""
    data = copy.deepcopy(dict(plan.certificate))
    above = best * (1 + rng.choice([1e-6, 1e-4, 0.01, 0.5, 10.0]))
    for key in ("prices", "points"):
        if key in data:
            data[key] = _distorted(data[key], rng, above, rng.randrange(4))
    data["target"] = above
    for key in ("memory_prices", "transfer_prices"):
        values = data.get(key)
        if isinstance(values, list) and rng.random() < 0.3:
            data[key] = [rng.choice([0.0, -1.0, 1.0, 1e99, 1e-300]) for _ in values]
    if rng.random() < 0.5:  # and a field that is no such thing
        data[rng.choice(list(data))] = rng.choice(ODD)
    return replace(plan, certificate=data, bound=above)


def _distorted(value: Any, rng: random.Random, above: float, how: int) -> Any:
    """Return numbers, or lists of lists of them, scaled, shifted, replaced or as they are."""
    if isinstance(value, float):
        shifted = value + rng.gauss(0, 1) * above
        other = rng.choice([0.0, above, 1e99, -1e99, 1e-300])
        return (value, shifted, other)[how]
    if how == 3:
        factor = rng.choice([1e-9, 0.5, 2.0, 1e9, -1.0])
        return [_scaled(one, factor) for one in value]
    return [_distorted(one, rng, above, how) for one in value]


def _scaled(value: Any, factor: float) -> Any:
    return value * factor if isinstance(value, float) else [_scaled(one, factor) for one in value]


def is_refused(workload: Workload, plan: Plan) -> bool:
    """Whether the check of a bound refuses the plan, in one line."""
    try:
        check_bound(workload, plan)
    except (InputError, VerificationError) as error:
        return str(error).isprintable()
    return False


def _plan(
    workload: Workload, cluster: Cluster | None, problem: Problem, method: str
) -> Plan | None:
    limits = Limits(nodes=5)
    try:
        return stagecut.solve(workload, cluster, problem, method=method, limits=limits).plan
    except InputError:
        return None
