"""Stages of modules for launchers, with their degrees, and stacks of numbered layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...instances import (
    InputError,
    PipelinePlacement,
    PipelineSchedule,
    Placement,
    Plan,
    ReplicaPlacement,
    StagePlacement,
    TensorSharding,
    Workload,
    is_iteration,
)
from ...instances.common.units import ROOT_MODULE
from ...instances.costs.description import ModelDescription
from ...instances.costs.layout import Layout
from ..simulate.pieces import forward_pieces_of, groups_of

_FURTHER_CALL = re.compile(r"#\d+$")


@dataclass(frozen=True)
class ModuleStages:
    """Stages of modules in the order of the pipeline, on R pipeline ranks."""

    #: Modules of each stage, in the order in which they run.
    modules: tuple[tuple[str, ...], ...]
    #: Number of ranks, R; stage s runs on rank s mod R.
    ranks: int
    #: Name of the plan's device of each rank; of replicas and tensor-parallel groups the first.
    devices: tuple[str, ...]
    #: Data-parallel and tensor-parallel degree, of every stage.
    replicas: int = 1
    degree: int = 1
    #: Whether activations are computed again in the backward pass.
    recomputes: bool = False
    #: Schedule and microbatches of an iteration's plan, if a launcher takes them; else empty, 0.
    schedule: str = ""
    microbatches: int = 0

    @property
    def where(self) -> dict[str, int]:
        """Stage of each module."""
        return {module: s for s, own in enumerate(self.modules) for module in own}

    @property
    def rounds(self) -> int:
        """Stages per rank."""
        return len(self.modules) // self.ranks

    @property
    def in_words(self) -> str:
        """Text of the degrees."""
        return f"pipeline {self.ranks} × data {self.replicas} × tensor {self.degree}"


def degrees_in_words(model: ModelDescription, layout: Layout) -> str:
    """Return the text of a model and the degrees of its layout."""
    return (
        f"{model.name}, tensor {layout.tensor} x context {layout.context} x pipeline "
        f"{layout.pipeline} x data {layout.data}"
    )


def layer_names(
    model: ModelDescription, layout: Layout, first: str, last: Sequence[str]
) -> list[list[str]]:
    """Return the names of the modules of each model stage, between a launcher's first and last."""
    counts = layout.layers_of_stages(len(model.blocks))
    ends = accumulate(counts)
    found = [
        [f"layers.{layer}" for layer in range(end - count, end)]
        for count, end in zip(counts, ends, strict=True)
    ]
    found[0].insert(0, first)
    found[layout.mtp_stage % layout.stages] += [f"mtp.{k}" for k in range(len(model.mtp))]
    found[-1] += last
    return found


@dataclass(frozen=True)
class _Stage:
    """Forward nodes of a stage, its first device, replicas and tensor degree."""

    nodes: tuple[int, ...]
    device: int
    replicas: int = 1
    degree: int = 1


def module_stages(
    workload: Workload,
    plan: Plan,
    target: str,
    unit: Callable[[str], str],
    *,
    rounds: bool = False,
    schedules: Sequence[str] = (),
) -> ModuleStages:
    """Return the stages of a plan for a launcher that divides a model between modules.

    `target` is its name in messages, `unit` returns the module that it keeps whole, from a path
    inside it; with `rounds` it runs several stages per rank, and `schedules` are those that it
    runs, empty if it takes none. Raises `InputError` with the reason why it cannot express the
    plan.
    """
    plan.check_made_for(workload)
    stages = _stages(workload, plan, target)
    _check_devices(plan, [stage.device for stage in stages], target)
    schedule, microbatches = _schedule(plan, target, schedules)
    degrees = []
    for what in ("replicas", "degree"):
        values = {getattr(stage, what) for stage in stages}
        if len(values) > 1:
            name = "data-parallel" if what == "replicas" else "tensor-parallel"
            raise InputError(
                f"{target}: the stages have {name} degrees {_listed(sorted(values))}; it has one "
                "for all stages"
            )
        degrees.append(values.pop())
    where = _modules(workload, [stage.nodes for stage in stages], target, unit)
    modules: list[list[str]] = [[] for _ in stages]
    for module, s in where.items():
        modules[s].append(module)
    for s, own in enumerate(modules):
        if not own:
            raise InputError(
                f"{target}: stage {s} holds operators between modules, but no whole module; plan "
                "on fewer devices"
            )
    ranks = _ranks(plan, [stage.device for stage in stages], target, rounds)
    return ModuleStages(
        modules=tuple(map(tuple, modules)),
        ranks=len(ranks),
        devices=tuple(plan.device_names[d] for d in ranks),
        replicas=degrees[0],
        degree=degrees[1],
        recomputes=_recomputes(workload, plan, target),
        schedule=schedule,
        microbatches=microbatches,
    )


def modules_of(workload: Workload, target: str, unit: Callable[[str], str]) -> dict[int, str]:
    """Return the module that each forward node belongs to, in the order in which they run.

    A node's module is the one that the launcher keeps whole: `unit` of the node's path. Left out
    are operators without weights that a module, no unit itself, runs between its children. Raises
    `InputError` if nodes are operators, or such a module has weights of its own.
    """
    if workload.provenance.get("granularity") == "operators":
        raise InputError(
            f"{target}: the nodes of {workload.name} are operators, it places whole modules; "
            "profile with --depth and plan again"
        )
    paths = [_FURTHER_CALL.sub("", name) for name in workload.names]
    forward = [v for v in workload.order if not workload.backward[v]]
    parents = {ROOT_MODULE}
    for v in forward:
        parts = paths[v].split(".")
        parents |= {".".join(parts[:k]) for k in range(1, len(parts))}
    whole = {unit(paths[v]) for v in forward if paths[v] not in parents}
    weights = workload.extra.get("parameters", workload.extra.get("weight_bytes"))
    own = {}
    for v in forward:
        if paths[v] not in parents or unit(paths[v]) in whole:
            own[v] = unit(paths[v])
        elif weights is None or weights[v] > 0:
            raise InputError(
                f"{target}: {paths[v]} has weights of its own, beside those of its modules; it "
                "places whole modules"
            )
    return own


def feeds(workload: Workload, own: Mapping[int, str]) -> set[tuple[str, str]]:
    """Return the pairs of different modules of `modules_of` joined by an edge.

    Data passes through nodes that belong to none.
    """
    carried: dict[int, set[str]] = {}
    pairs = set()
    for v in workload.order:
        if workload.backward[v]:
            continue
        given = {m for u in workload.predecessors[v] for m in carried.get(u, ())}
        if v in own:
            pairs |= {(module, own[v]) for module in given - {own[v]}}
            given = {own[v]}
        carried[v] = given
    return pairs


def _stages(workload: Workload, plan: Plan, target: str) -> list[_Stage]:
    solution = plan.solution
    if isinstance(solution, Placement | PipelinePlacement):
        where = plan.placement.tolist()
        pieces = forward_pieces_of(workload, *groups_of(plan))
        return [_Stage(nodes, where[nodes[0]]) for nodes in pieces]
    if isinstance(solution, StagePlacement):
        return [
            _Stage(
                tuple(v for v in stage.nodes if not workload.backward[v]),
                int(solution.device[stage.nodes[0]]),
                stage.replicas,
                stage.degree,
            )
            for stage in solution.stages
        ]
    if isinstance(solution, ReplicaPlacement):
        members: list[list[int]] = [[] for _ in range(len(solution.slots))]
        for v, s in enumerate(solution.stage.tolist()):
            if not workload.backward[v]:
                members[s].append(v)
        return [
            _Stage(tuple(nodes), int(row[0]), len(row))
            for nodes, row in zip(members, solution.slots.tolist(), strict=True)
        ]
    if isinstance(solution, TensorSharding):
        raise InputError(
            f"{target}: the plan is a sharding, it has no stages; write it with --to dtensor"
        )
    raise InputError(
        f"{target}: the plan is for the latency of one request, not for a pipeline; plan with "
        "--problem pipeline or throughput"
    )


def _modules(
    workload: Workload,
    stages: Sequence[Sequence[int]],
    target: str,
    unit: Callable[[str], str],
) -> dict[str, int]:
    """Return the stage of each module, in the order in which they run."""
    stage_of = {v: s for s, nodes in enumerate(stages) for v in nodes}
    own = modules_of(workload, target, unit)
    where: dict[str, int] = {}
    for v, module in sorted(own.items(), key=lambda item: stage_of[item[0]]):
        if where.setdefault(module, stage_of[v]) != stage_of[v]:
            raise InputError(
                f"{target}: module {module} is split between stages {where[module]} and "
                f"{stage_of[v]}; it keeps it whole: plan with --for {target}"
            )
    for source, sink in sorted(feeds(workload, own)):
        if where[sink] > where[source] + 1:
            raise InputError(
                f"{target}: {source} on stage {where[source]} feeds {sink} on stage "
                f"{where[sink]}; its stages pass data to the next one only"
            )
    return where


def _check_devices(plan: Plan, devices: Sequence[int], target: str) -> None:
    for d in devices:
        device = plan.cluster.devices[d]
        if plan.cluster.kinds[device.kind].host:
            raise InputError(
                f"{target}: the plan uses {device.name!r}, which computes in host memory; plan "
                "with --cpus 0"
            )


def _ranks(plan: Plan, devices: Sequence[int], target: str, rounds: bool) -> list[int]:
    """Return the device of each pipeline rank; stage s is on rank s modulo their number."""
    ranks = list(dict.fromkeys(devices))
    if len(devices) > len(ranks) and not rounds:
        name = next(plan.device_names[d] for d in ranks if list(devices).count(d) > 1)
        raise InputError(
            f"{target}: {name!r} holds several stages; it runs one per device: plan with "
            "--split contiguous"
        )
    for s, d in enumerate(devices):
        wanted = ranks[s % len(ranks)]
        if d != wanted:
            raise InputError(
                f"{target}: stage {s} is on {plan.device_names[d]!r}; it puts stage s on "
                f"rank s mod {len(ranks)}, here {plan.device_names[wanted]!r}"
            )
    if len(devices) % len(ranks):
        raise InputError(
            f"{target}: {len(devices)} stages on {len(ranks)} devices; it puts as many on each"
        )
    return ranks


def _schedule(plan: Plan, target: str, schedules: Sequence[str]) -> tuple[str, int]:
    """Return schedule and microbatches of a plan; empty and 0 if the launcher takes none."""
    if not is_iteration(plan.problem) or not schedules:
        return "", 0
    schedule = plan.problem.schedule_name
    if schedule == "interleaved" and plan.problem.chunks_per_device == 1:
        schedule = PipelineSchedule.ONE_F_ONE_B
    if schedule not in schedules:
        raise InputError(
            f"{target}: the plan was made for {schedule}; it runs {' and '.join(schedules)}: plan "
            f"with --schedule {schedules[0]}"
        )
    return schedule, plan.problem.batch


def _recomputes(workload: Workload, plan: Plan, target: str) -> bool:
    if not isinstance(plan.solution, StagePlacement) or workload.layers is None:
        return False
    flags = {
        bool(workload.layers.recomputes[c])
        for stage in plan.solution.stages
        for c in stage.configuration
    }
    if len(flags) > 1:
        raise InputError(
            f"{target}: the plan recomputes activations in some layers only; plan with "
            "--set recomputation=off or forced"
        )
    return flags == {True}


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:-1])) + f" and {values[-1]}"


def first_number(path: str) -> str:
    """Return the path up to its first number: the item of the first list that it goes through.

    Examples
    --------
    >>> first_number("transformer.h.3.mlp"), first_number("transformer.wte")
    ('transformer.h.3', 'transformer.wte')
    """
    parts = path.split(".")
    for k, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: k + 1])
    return path


def stack(stages: ModuleStages, target: str) -> tuple[str, list[tuple[int, int, int]]]:
    """Return the path of a model's numbered layers, and three counts for each stage.

    They are of modules before the first layer, of layers, and of modules after the last. Raises
    `InputError` if there is not one list of layers 0, 1, …, divided in this order.
    """
    lists: dict[str, list[int]] = {}
    for own in stages.modules:
        for module in own:
            head, _, last = module.rpartition(".")
            if last.isdecimal():
                lists.setdefault(head, []).append(int(last))
    if len(lists) != 1:
        found = f"{len(lists)} lists of layers ({', '.join(lists)})" if lists else "no list of them"
        raise InputError(f"{target}: it counts the layers of one stack; the model has {found}")
    ((name, numbers),) = lists.items()
    if numbers != list(range(len(numbers))):
        raise InputError(
            f"{target}: the layers of {name} do not run in the order 0 to {len(numbers) - 1}, "
            "one after the other; it counts them"
        )
    counts, seen = [], 0
    for own in stages.modules:
        flags = [module.rpartition(".")[0] == name for module in own]
        layers = sum(flags)
        before = sum(not flag for flag in flags) if seen == 0 and not layers else 0
        if layers:
            before, end = flags.index(True), len(flags) - flags[::-1].index(True)
            if layers < end - before or (before and seen):
                raise InputError(f"{target}: other modules run between the layers of {name}")
        seen += layers
        after = len(own) - before - layers
        if after and seen < len(numbers):
            raise InputError(f"{target}: other modules run between the layers of {name}")
        counts.append((before, layers, after))
    return name, counts
