"""The declared space of a training job: all layouts that may be chosen, without their stages.

An *outer point* fixes all of a layout except its stages: the degrees t (tensor), c (context),
p (pipeline), d (data), e (expert), e_t (expert-tensor), the microbatch b, the ZeRO stage z, the
schedule with v chunks, the recomputed modules, and the fractions of activations, weights and
optimizer state in host memory. Left open are the number of layers of each stage and, if whole
layers are recomputed, the number of these. The points are

    t c p d = N devices,  M = global batch / (b d) whole,  e e_t | t c d                         (1)
    t ≤ devices of a node,  c ≤ sequence / 1,024,  v ≤ 12,  b up to 8, or 16                     (2)
    v > 1: p v ≤ L and p v | L + k, k = 0 … 2 + m,  or 3 p v ≤ L;  in a pipeline M ≤ 4,096       (3)
    interleaved: p | M;  zb-v, dualpipe-v: v = 2;  dualpipe-v: M ≥ 2 p

for L layers and m blocks of multi-token prediction; the head, each of these and the embedding may
count as layers. (1) is required by `check_layout`; (2) and (3) are declared, and a certificate
holds for this space.
Values that the job gives replace (2). Points are columns of numbers, as there are up to a million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...instances.common.arrays import Ints
from ...instances.common.errors import InputError
from ...instances.common.units import divisors, show_count
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import TrainingCluster
from ...instances.costs.layout import (
    FULL,
    OFFLOAD,
    V_SCHEDULES,
    JobSchedule,
    Layout,
    Recompute,
    check_experts,
    check_heads,
    check_positions,
    check_precision,
    check_profiled,
)
from ...instances.job.launchers import runs
from ...instances.job.problem import OPEN, TrainingJob
from ...instances.model.schedule import V_CHUNKS

#: Declared limits of the space, unless the job gives values: microbatches, chunks, and the least
#: tokens of a context-parallel rank.
MICROBATCHES, MOST_CHUNKS, LEAST_CONTEXT_TOKENS = (*range(1, 9), 16), 12, 1024
#: Least mean number of layers per stage if ranks have several chunks and the number of stages does
#: not divide that of layers.
UNEVEN_CHUNK = 3
#: Most microbatches of a replica in a pipeline.
MOST_MICROBATCHES = 4096


@dataclass(frozen=True, eq=False)
class JobSpace:
    """Outer points of a job (layouts without their stages), as columns."""

    #: The model, the cluster that trains it, and the job as the user posed it.
    model: ModelDescription
    cluster: TrainingCluster
    job: TrainingJob
    #: Layouts with the fields that determine a layer's time and bytes: t, c, e, e_t, b, recomputed
    #: modules and fractions in host memory. Their pipeline and data degrees are 1.
    settings: tuple[Layout, ...]
    #: Shape (points,): position in `settings`.
    setting: Ints
    #: Shape (points,): degrees p and d, chunks v, ZeRO stage z and microbatches M.
    pipeline: Ints
    data: Ints
    chunks: Ints
    zero: Ints
    microbatches: Ints
    #: Shape (points,): position in `schedules`.
    schedule: Ints
    #: Schedules of the points.
    schedules: tuple[JobSchedule, ...]

    def __len__(self) -> int:
        """Count the points."""
        return len(self.setting)

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Degrees of the settings, and fractions in host memory, by field; shape (settings,)."""
        names = ("tensor", "context", "expert", "expert_tensor", *OFFLOAD)
        return {name: np.array([getattr(one, name) for one in self.settings]) for name in names}

    def layout(self, point: int) -> Layout:
        """Return a point as a layout with stages of nearly equal numbers of layers."""
        setting: Layout = self.settings[int(self.setting[point])]
        return replace(
            setting,
            pipeline=int(self.pipeline[point]),
            data=int(self.data[point]),
            chunks=int(self.chunks[point]),
            zero=int(self.zero[point]),
            schedule=self.schedules[self.schedule[point]],
        )


def job_space(model: ModelDescription, cluster: TrainingCluster, job: TrainingJob) -> JobSpace:
    """Return all outer points of a job; `InputError` if none agrees with the given values."""
    check_precision(job.template, cluster)
    if _profiled(model) and job.sequence != 1:
        raise InputError(
            f"sequence: {job.sequence}; the batch that {model.name} was profiled with counts as a "
            "microbatch of 1 sequence of 1 token; take sequence 1"
        )
    check_positions(model, job.template)
    there = _modules(model) & job.settings.recompute
    if job.recompute and not any(modes <= there for modes in job.recompute):
        said = " or ".join(" + ".join(sorted(modes)) for modes in job.recompute)
        raise InputError(
            f"recompute: {job.launcher} can recompute no {said} of {model.name}; take some of "
            f"{', '.join(sorted(there))}"
        )
    settings, table = _points(model, cluster, job)
    if not len(table):
        raise InputError(_nothing(model, cluster, job))
    return JobSpace(
        model, cluster, job, tuple(settings),
        setting=table[:, 0], pipeline=table[:, 1], data=table[:, 2], microbatches=table[:, 3],
        schedule=table[:, 4], chunks=table[:, 5], zero=table[:, 6], schedules=_orders(job),
    )  # fmt: skip


def _points(
    model: ModelDescription, cluster: TrainingCluster, job: TrainingJob
) -> tuple[list[Layout], Ints]:
    """Return the settings, and each point's setting, p, d, M, schedule, v and z, shape (n, 7)."""
    devices, schedules = cluster.devices, _orders(job)
    experts = any(block.experts is not None for block in model.layer_types)
    settings: list[Layout] = []
    known: dict[tuple[object, ...], Ints] = {}
    rows = [np.zeros((0, 7), np.int64)]
    for degrees in _degrees(model, cluster, job):
        own = list(_settings(model, job, degrees))
        if not own:
            continue
        per_rank = degrees.tensor * degrees.context
        for pipeline in _values(job, "pipeline", range(1, min(devices, model.layers) + 1)):
            if devices % (per_rank * pipeline) or (pipeline > 1 and not job.pipelines(model)):
                continue
            data = devices // (per_rank * pipeline)
            allowed = job.allowed("data")
            if allowed is not None and data not in allowed:
                continue
            if (per_rank * data) % (degrees.expert * degrees.expert_tensor):
                continue
            cut = replace(degrees, pipeline=pipeline, data=data)
            divides = cut.replicas > 1 or (experts and cut.expert_data > 1)
            for k, setting in enumerate(own, len(settings)):
                once = setting.microbatch * data
                if job.global_batch % once:
                    continue
                m = job.global_batch // once
                if pipeline > 1 and m > MOST_MICROBATCHES:
                    continue
                key = pipeline, m % pipeline == 0, m >= V_CHUNKS * pipeline, divides
                if key not in known:
                    known[key] = _pipelines(model, job, schedules, *key)
                kinds = known[key]
                if len(kinds):
                    fixed = np.array([k, pipeline, data, m])
                    rows.append(np.hstack([np.tile(fixed, (len(kinds), 1)), kinds]))
        settings += own
    return settings, _runnable(model, job, settings, schedules, np.concatenate(rows))


def _values(job: TrainingJob, name: str, otherwise: range | list[int]) -> list[int]:
    """Return the values of a degree that the job allows, increasing; if open, `otherwise`."""
    given = job.allowed(name)
    return sorted(otherwise if given is None else given)


def _degrees(
    model: ModelDescription, cluster: TrainingCluster, job: TrainingJob
) -> Iterator[Layout]:
    """Yield the tensor, context, expert and expert-tensor degrees that can divide the model."""
    devices, template = cluster.devices, job.template
    experts = max(
        (b.experts.experts for b in model.layer_types if b.experts is not None), default=1
    )
    within = [n for n in divisors(devices) if n <= cluster.per_node]
    rings = [n for n in divisors(devices) if n == 1 or n <= job.sequence // LEAST_CONTEXT_TOKENS]
    shares = [n for n in divisors(devices) if experts % n == 0]  # only 1 for a dense model
    parallel = job.settings.sequence_parallel
    for t, c in product(_values(job, "tensor", within), _values(job, "context", rings)):
        if devices % (t * c):
            continue
        one = replace(template, tensor=t, context=c, sequence_parallel=parallel and t > 1)
        if not (_keeps(check_heads, model, one) and _keeps(check_profiled, model, one)):
            continue
        folded = _values(job, "expert_tensor", [1])
        for e, e_t in product(_values(job, "expert", shares), folded):
            # The number of devices of a rank depends on the pipeline, so it is not checked here.
            both = replace(one, expert=e, expert_tensor=e_t)
            if e * e_t <= devices and _keeps(
                check_experts, model, replace(both, data=devices * e_t)
            ):
                yield both


def _keeps(
    check: Callable[[ModelDescription, Layout], None], model: ModelDescription, layout: Layout
) -> bool:
    """Whether a check accepts a layout, that is, raises no `InputError`."""
    try:
        check(model, layout)
    except InputError:
        return False
    return True


def _settings(model: ModelDescription, job: TrainingJob, degrees: Layout) -> Iterator[Layout]:
    """Yield the degrees with each microbatch, recomputation, and fractions in host memory."""
    sizes = [1] if _profiled(model) else list(MICROBATCHES)
    modules, hosts = _modules(model), product(*map(job.parts, OFFLOAD))
    for parts, b in product(hosts, _values(job, "microbatch", sizes)):
        if job.global_batch % b:
            continue
        there: dict[str, Any] = dict(zip(OFFLOAD, parts, strict=True))
        degrees = replace(degrees, **there)
        seen = set()
        for modes in (frozenset[Recompute](), *job.modes):
            if modes <= modules:
                seen.add(modes)
        for found in sorted(seen, key=sorted):
            setting = replace(degrees, microbatch=b, recompute=found)
            some = replace(setting, recompute_layers=0)  # their number is open, and may be 0
            counted = [some] if job.counts_layers(some) else []
            none_counted = FULL in seen and job.counts_layers(replace(some, recompute=FULL))
            if found or not none_counted or model.mtp:  # counts do not cover blocks of `mtp`
                yield setting
            yield from counted


def _profiled(model: ModelDescription) -> bool:
    """Whether the model is a profiled one, of which only measured configurations are known."""
    return any(block.profiled is not None for block in model.layer_types)


def _modules(model: ModelDescription) -> frozenset[Recompute]:
    """Return the recomputable modules that the model's layers have."""
    if _profiled(model):
        return FULL
    found = {Recompute.FULL, Recompute.LAYERNORM, Recompute.OPERATORS}
    for block in model.layer_types:
        if block.attention is not None and block.attention.latent:
            found.add(Recompute.MLA_UP_PROJECTION)
        if block.feed_forward is not None:
            found.add(Recompute.MLP)
        if block.experts is not None:
            found |= {Recompute.MOE, Recompute.MOE_ACTIVATION}
            if block.experts.shared is not None:
                found.add(Recompute.SHARED_EXPERTS)
    return frozenset(found)


def _orders(job: TrainingJob) -> tuple[JobSchedule, ...]:
    """Return the allowed schedules after 1F1B, which stands for a single pipeline rank."""
    return (
        JobSchedule.ONE_F_ONE_B,
        *(one for one in job.orders if one is not JobSchedule.ONE_F_ONE_B),
    )


def _pipelines(
    model: ModelDescription,
    job: TrainingJob,
    schedules: tuple[JobSchedule, ...],
    pipeline: int,
    rounds: bool,
    enough: bool,
    divides: bool,
) -> Ints:
    """Return schedule, chunks and ZeRO stage of the points with `pipeline` ranks, shape (n, 3).

    `rounds`: the number of ranks divides that of microbatches; `enough`: there are at least as many
    microbatches as stages in a V; `divides`: there are replicas whose state ZeRO can divide.
    """
    chunks = _values(job, "chunks", range(1, MOST_CHUNKS + 1))
    kinds: list[tuple[int, int]] = []
    for k, schedule in enumerate(schedules):
        if pipeline == 1:
            if k == 0 and 1 in chunks:
                kinds.append((0, 1))
        elif schedule not in job.orders:
            continue
        elif schedule in V_SCHEDULES:
            fits = enough or schedule is JobSchedule.ZB_V
            if V_CHUNKS in chunks and fits and _may_chunk(model, V_CHUNKS * pipeline):
                kinds.append((k, V_CHUNKS))
        elif schedule is JobSchedule.INTERLEAVED:
            kinds += [
                (k, v) for v in chunks if v > 1 and rounds and _may_chunk(model, v * pipeline)
            ]
        elif 1 in chunks:
            kinds.append((k, 1))
    stages = job.zero_stages(pipeline)
    if not divides:
        # Without replicas, ZeRO 3 still frees activations layer by layer, and launchers offload
        # optimizer state only from ZeRO 1 on.
        own = (1,) if max(job.parts("offload_optimizer")) else ()
        stages = tuple(z for z in stages if z in (stages[0], 3, *own))
    return np.array([(k, v, z) for k, v in kinds for z in stages], dtype=np.int64).reshape(-1, 3)


def _runnable(
    model: ModelDescription,
    job: TrainingJob,
    settings: list[Layout],
    schedules: tuple[JobSchedule, ...],
    table: Ints,
) -> Ints:
    """Return the rows of `table` that the launcher can run; equivalent layouts are checked once."""
    alike: dict[tuple[object, ...], bool] = {}
    kinds = [
        (
            one.tensor,
            one.context,
            one.expert if job.settings.experts_in_data else one.expert > 1,
            one.expert_tensor > 1,
            one.recompute,
            one.recompute_layers,
            *(getattr(one, name) for name in OFFLOAD),
        )
        for one in settings
    ]
    keep = np.zeros(len(table), bool)
    for k, (i, p, d, _, schedule, v, z) in enumerate(table.tolist()):
        key = (kinds[i], p > 1, d if job.settings.experts_in_data else d > 1, schedule, v > 1, z)
        if key not in alike:
            layout = replace(
                settings[i], pipeline=p, data=d, schedule=schedules[schedule], chunks=v, zero=z
            )
            alike[key] = runs(job.launcher, layout, model) is None
        keep[k] = alike[key]
    return table[keep]


def _may_chunk(model: ModelDescription, stages: int) -> bool:
    """Whether the space has layouts with `stages` stages on ranks with several chunks.

    The number of stages must divide that of layers, with any of embedding, head and multi-token
    predictions counted as layers, or stages must have a mean of at least `UNEVEN_CHUNK` layers.
    """
    ends = 2 + len(model.mtp)
    even = any((model.layers + k) % stages == 0 for k in range(ends + 1))
    return (even and stages <= model.layers) or UNEVEN_CHUNK * stages <= model.layers


def _nothing(model: ModelDescription, cluster: TrainingCluster, job: TrainingJob) -> str:
    """Return an error message: what leaves no point, and the single changes that would help."""
    usual: dict[str, Any] = {one.name: one.default for one in fields(TrainingJob)}
    given = [name for name in (*OPEN, *OFFLOAD, "schedules") if getattr(job, name) != usual[name]]
    names = ", ".join(f"{name} {_said(getattr(job, name))}" for name in given)
    free = [n for n in given if _has_points(model, cluster, replace(job, **{n: usual[n]}))]
    helps = [
        f"leave {' or '.join(own)} {how}"
        for how, own in (
            ("open", [name for name in free if name not in OFFLOAD]),
            ("out", [name for name in free if name in OFFLOAD]),  # their default is 0, not open
        )
        if own
    ]
    larger = (replace(job, global_batch=batch) for batch in _larger_batches(cluster, job))
    found = next((one for one in larger if _has_points(model, cluster, one)), None)
    if found is not None:
        helps.append(f"take a global batch of {found.global_batch}")
    anywhere = replace(job, launcher="any")
    if anywhere != job and _has_points(model, cluster, anywhere):
        helps.append("plan for any launcher")
    return (
        f"job: no layout of {show_count(cluster.devices, 'device')} for {job.launcher} has a "
        f"global batch of {show_count(job.global_batch, 'sequence')} and "
        f"{names or 'nothing fixed'}; {', or '.join(helps) or 'leave several of them open'}"
    )


def _larger_batches(cluster: TrainingCluster, job: TrainingJob) -> list[int]:
    """Return larger batches that replicas and pipelines may divide, the smallest first.

    Schedules need a multiple of p microbatches, or 2 p.
    """
    parts = divisors(cluster.devices)
    sizes = {k * n * b for k in (1, 2) for n in parts for b in job.allowed("microbatch") or (1,)}
    return sorted({(job.global_batch // size + 1) * size for size in sizes})


def _said(value: object) -> str:
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _has_points(model: ModelDescription, cluster: TrainingCluster, job: TrainingJob) -> bool:
    """Whether the space of a job has any point."""
    return len(_points(model, cluster, job)[1]) > 0
