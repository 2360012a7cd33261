"""The declared space of a training job: every layout that may be chosen, up to its stages.

An *outer point* fixes everything but the pipeline's stages: the degrees t (tensor), c (context),
p (pipeline), d (data), e (expert), e_t (expert-tensor), the microbatch b, the ZeRO stage z, the
schedule with v chunks, the recomputed modules, and the parts of activations, weights and optimizer
state that lie in host memory. *Inside* a point remain the layers of each stage
and, where whole layers are recomputed, how many of each stage are. The points are

    t c p d = N devices,  M = global batch / (b d) whole,  e e_t | t c d                         (1)
    t ≤ the domain of peer links,  c ≤ sequence / 1,024,  v ≤ 12,  b up to 8, or 16              (2)
    v > 1: p v | L + (0, 1 or 2 for the ends), or 3 p v ≤ L;  in a pipeline M ≤ 4,096            (3)
    interleaved: p | M;  zb-v, dualpipe-v: v = 2;  dualpipe-v: M ≥ 2 p

(1) is what `check_layout` asks, (2) and (3) are declared: a certificate holds for this space. What
the job gives takes the place of (2). Points are columns of numbers: there are up to a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from ...instances.common.arrays import Ints
from ...instances.common.errors import InputError
from ...instances.common.units import show_count
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import TrainingCluster
from ...instances.costs.layout import (
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

#: Declared ends of the space, where the job does not say otherwise.
MICROBATCHES, MOST_CHUNKS, LEAST_CONTEXT_TOKENS = (*range(1, 9), 16), 12, 1024
#: Layers that each of several chunks on a rank must have in the mean, where their number does not
#: divide that of layers.
UNEVEN_CHUNK = 3
#: Microbatches of a replica in a pipeline at most.
MOST_MICROBATCHES = 4096


@dataclass(frozen=True, eq=False)
class JobSpace:
    """Outer points of a job, layouts up to their stages, as columns."""

    #: The model, the cluster that trains it, and the job as the user posed it.
    model: ModelDescription
    cluster: TrainingCluster
    job: TrainingJob
    #: Layouts by all that decides a layer's time and bytes: t, c, e, e_t, b, the recomputed modules
    #: and what lies in host memory; their pipeline and data degrees are 1.
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

    def layout(self, point: int) -> Layout:
        """Return a point as a layout, with stages as even as can be."""
        setting: Layout = self.settings[int(self.setting[point])]
        return replace(
            setting,
            pipeline=int(self.pipeline[point]),
            data=int(self.data[point]),
            chunks=int(self.chunks[point]),
            zero=int(self.zero[point]),
            schedule=self.schedules[self.schedule[point]],
        )


FULL = frozenset({Recompute.FULL})


def job_space(model: ModelDescription, cluster: TrainingCluster, job: TrainingJob) -> JobSpace:
    """Return all outer points of a job; an `InputError` if none keeps what is given."""
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
    schedules = _orders(job)
    settings, table = _points(model, cluster, job, schedules)
    if not len(table):
        raise InputError(_nothing(model, cluster, job))
    return JobSpace(
        model, cluster, job, tuple(settings),
        setting=table[:, 0], pipeline=table[:, 1], data=table[:, 2], microbatches=table[:, 3],
        schedule=table[:, 4], chunks=table[:, 5], zero=table[:, 6], schedules=schedules,
    )  # fmt: skip


def _points(
    model: ModelDescription,
    cluster: TrainingCluster,
    job: TrainingJob,
    schedules: tuple[JobSchedule, ...],
) -> tuple[list[Layout], Ints]:
    """Return settings, and of each point its setting, p, d, M, schedule, v and z."""
    devices = cluster.devices
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
    return settings, _runnable(job, model.layers, settings, schedules, np.concatenate(rows))


def _values(job: TrainingJob, name: str, otherwise: range | list[int]) -> list[int]:
    """Return a degree's values that the job allows, in rising order; if open, those declared."""
    given = job.allowed(name)
    return sorted(otherwise if given is None else given)


def _degrees(
    model: ModelDescription, cluster: TrainingCluster, job: TrainingJob
) -> Iterator[Layout]:
    """Yield tensor, context, expert and expert-tensor degrees that the model can be cut into."""
    devices, template = cluster.devices, job.template
    divisors = [n for n in range(1, devices + 1) if devices % n == 0]
    experts = max(
        (b.experts.experts for b in model.layer_types if b.experts is not None), default=1
    )
    within = [n for n in divisors if n <= min(cluster.domain, cluster.per_node)]
    rings = [n for n in divisors if n == 1 or n <= job.sequence // LEAST_CONTEXT_TOKENS]
    shares = [n for n in divisors if experts % n == 0]  # of a dense model 1 alone
    parallel = job.settings.sequence_parallel
    for t, c in product(_values(job, "tensor", within), _values(job, "context", rings)):
        if devices % (t * c):
            continue
        one = replace(template, tensor=t, context=c, sequence_parallel=parallel and t > 1)
        if not (_keeps(check_heads, model, one) and _keeps(check_profiled, model, one)):
            continue
        folded = _values(job, "expert_tensor", [1])
        for e, e_t in product(_values(job, "expert", shares), folded):
            # All of a rank's devices are there to be divided; how many depends on the pipeline.
            both = replace(one, expert=e, expert_tensor=e_t)
            if e * e_t <= devices and _keeps(
                check_experts, model, replace(both, data=devices * e_t)
            ):
                yield both


def _keeps(check: object, model: ModelDescription, layout: Layout) -> bool:
    """Whether a check of a layout raises nothing."""
    assert callable(check)
    try:
        check(model, layout)
    except InputError:
        return False
    return True


def _settings(model: ModelDescription, job: TrainingJob, degrees: Layout) -> Iterator[Layout]:
    """Yield the degrees with every microbatch and every set of recomputed modules."""
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
            some = replace(setting, recompute_layers=0)  # how many is open, none among them
            counted = [some] if job.counts_layers(some) else []
            none_counted = FULL in seen and job.counts_layers(replace(some, recompute=FULL))
            if found or not none_counted or model.mtp:  # which predictions do not count
                yield setting
            yield from counted


def _profiled(model: ModelDescription) -> bool:
    """Whether the model was profiled, so that only what was measured is known of it."""
    return any(block.profiled is not None for block in model.layer_types)


def _modules(model: ModelDescription) -> frozenset[Recompute]:
    """Return the modules that layers of the model have, of those that can be recomputed."""
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
    """Return the orders of passes, plain 1F1B first, which one pipeline rank has in any case."""
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
    """Return schedule, chunks and ZeRO stage of each point of so many ranks, shape (points, 3).

    `rounds` says whether the number of ranks divides that of microbatches, `enough` whether there
    are as many microbatches as stages in a V, `divides` whether ZeRO has copies to divide.
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
        # There are no copies. ZeRO 3 still frees activations layer by layer; from 1 on launchers
        # take optimizer state to host memory.
        own = (1,) if max(job.parts("offload_optimizer")) else ()
        stages = tuple(z for z in stages if z in (stages[0], 3, *own))
    return np.array([(k, v, z) for k, v in kinds for z in stages], dtype=np.int64).reshape(-1, 3)


def _runnable(
    job: TrainingJob,
    layers: int,
    settings: list[Layout],
    schedules: tuple[JobSchedule, ...],
    table: Ints,
) -> Ints:
    """Return the rows of the points that the launcher can run, asking once for those alike."""
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
            alike[key] = runs(job.launcher, layout, layers) is None
        keep[k] = alike[key]
    return table[keep]


def _may_chunk(model: ModelDescription, stages: int) -> bool:
    """Whether the layers may be cut into so many stages, of several chunks per rank.

    Either evenly, embedding, head and predictions counted as layers or not, or into stages of
    `UNEVEN_CHUNK` layers or more in the mean.
    """
    ends = 2 + len(model.mtp)
    even = any((model.layers + k) % stages == 0 for k in range(ends + 1))
    return (even and stages <= model.layers) or UNEVEN_CHUNK * stages <= model.layers


def _nothing(model: ModelDescription, cluster: TrainingCluster, job: TrainingJob) -> str:
    """Return a line on the reason for no point, and single changes that leave some."""
    usual: dict[str, Any] = {one.name: one.default for one in fields(TrainingJob)}
    given = [name for name in (*OPEN, *OFFLOAD, "schedules") if getattr(job, name) != usual[name]]
    names = ", ".join(f"{name} {_said(getattr(job, name))}" for name in given)
    each = job.global_batch * cluster.devices
    free = [n for n in given if _has_points(model, cluster, replace(job, **{n: usual[n]}))]
    helps = [
        f"leave {' or '.join(own)} {how}"
        for how, own in (
            ("open", [name for name in free if name not in OFFLOAD]),
            ("out", [name for name in free if name in OFFLOAD]),  # none of it is what is usual
        )
        if own
    ]
    for said, other in (
        (f"take a global batch of {each}", replace(job, global_batch=each)),
        ("plan for any launcher", replace(job, launcher="any")),
    ):
        if other != job and _has_points(model, cluster, other):
            helps.append(said)
    return (
        f"job: no layout of {show_count(cluster.devices, 'device')} for {job.launcher} has a "
        f"global batch of {show_count(job.global_batch, 'sequence')} and "
        f"{names or 'nothing fixed'}; {', or '.join(helps) or 'leave several of them open'}"
    )


def _said(value: object) -> str:
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _has_points(model: ModelDescription, cluster: TrainingCluster, job: TrainingJob) -> bool:
    """Whether a job has layouts."""
    return len(_points(model, cluster, job, _orders(job))[1]) > 0
