"""The bound of a training job's plan, proved again with nothing of what found it.

Every outer point of the declared space is listed here anew, as a layout. Costs are not formulas
but probes: what the estimate says of a stage with a layer more, of a rank with one more or one
recomputed, gives planes below its seconds and bytes. Paths are those of the runtime's schedules. A
point is ruled out if its whole work over its ranks takes as long as the bound; if without a
pipeline no number of recomputed layers is faster; or if a program over those planes and paths,
which SciPy solves, has no solution below the bound.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from ....instances import InputError, VerificationError
from ....instances.common.arrays import Floats
from ....instances.costs.calibration import Calibration, calibration
from ....instances.costs.layers import LayerPrices, rank_parameters
from ....instances.costs.layout import JobSchedule, Layout, Recompute, check_layout
from ....instances.costs.memory import (
    RankStages,
    passes_in_flight,
    rank_memory,
)
from ....instances.costs.stages import (
    StageTime,
    exposed_traffic,
    message_time,
    optimizer_step,
    stage_time,
    tied_all_reduce,
)
from ....instances.job.launchers import runs
from ....instances.job.plan import JobPlan
from ....instances.job.problem import TrainingJob
from ...estimate import iteration_times, schedule_steps
from ..layouts import verify_job_plan

_FULL = frozenset({Recompute.FULL})
#: Programs of one point at most, each with the longest paths of the solution before.
ROUNDS = 60
#: Layers of each type in a probed stage.
PROBED = 3
#: Relative part of the bound that is not proved: solvers keep rows to 1e-6 or so.
MARGIN = 1e-5


@dataclass(frozen=True)
class JobBoundCheck:
    """How a bound was proved again: points, and how many of them by a program."""

    points: int
    programs: int
    seconds: float


def check_job_bound(
    plan: JobPlan,
    table: Calibration | None = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> JobBoundCheck:
    """Prove that no plan of the declared space is faster than a plan's bound.

    Parameters
    ----------
    table
        Efficiencies that it was made with; default: the shipped ones.
    on_progress
        Told how many points of how many are ruled out.

    Raises
    ------
    VerificationError
        If the plan is not what it claims, its certificate counts other points than there are, or a
        point cannot be ruled out.
    """
    begin = time.monotonic()
    verify_job_plan(plan, table)
    table = table or calibration(plan.cluster.accelerator.family, plan.job.settings.software)
    prices = LayerPrices(plan.model, plan.cluster, table)
    points = list(outer_points(plan))
    _check_counts(plan, points)
    least = plan.bound * (1 - MARGIN)
    programs = 0
    for number, layout in enumerate(points):
        if on_progress is not None and number % 256 == 0:
            on_progress(number, len(points))
        if _work(plan.job, layout, prices) >= least:
            continue
        if layout.pipeline == 1:
            faster = _without_pipeline(plan, layout, prices) < least
        else:
            programs += 1
            faster = not _PointProof(plan, layout, prices).ruled_out(least)
        if faster:
            raise VerificationError(
                f"bound: {plan.bound:.6g} s is not proved at TP {layout.tensor}, CP "
                f"{layout.context}, PP {layout.pipeline}, DP {layout.data}, EP {layout.expert}, "
                f"ZeRO {layout.zero}, microbatch {layout.microbatch}, {layout.schedule} x "
                f"{layout.chunks}"
            )
    return JobBoundCheck(len(points), programs, time.monotonic() - begin)


# The declared space.


def outer_points(plan: JobPlan) -> Iterator[Layout]:
    """Yield every outer point of a plan's job, with stages as even as can be."""
    model, cluster, job = plan.model, plan.cluster, plan.job
    devices = cluster.devices
    parts = [k for k in range(1, devices + 1) if devices % k == 0]
    most = {block.experts.experts for block in model.layer_types if block.experts is not None}
    profiled = any(block.profiled is not None for block in model.layer_types)
    tensors = job.allowed("tensor") or [
        k for k in parts if k <= min(cluster.domain, cluster.per_node)
    ]
    contexts = job.allowed("context") or [k for k in parts if k == 1 or k * 1024 <= job.sequence]
    experts = (job.allowed("expert") or [k for k in parts if max(most) % k == 0]) if most else [1]
    shares = (job.allowed("expert_tensor") or [1]) if most else [1]
    batches = job.allowed("microbatch") or ([1] if profiled else [1, 2, 4, 8, 16])
    modes = _modes(plan)
    for t, c, e, e_t in itertools.product(tensors, contexts, experts, shares):
        for p in job.allowed("pipeline") or range(1, model.layers + 1):
            if devices % (t * c * p):
                continue
            d = devices // (t * c * p)
            if job.allowed("data") is not None and d not in (job.allowed("data") or ()):
                continue
            for b in batches:
                if job.global_batch % (b * d) or (t * c * d) % (e * e_t):
                    continue
                one = replace(
                    job.template, tensor=t, context=c, pipeline=p, data=d, expert=e,
                    expert_tensor=e_t, microbatch=b,
                    sequence_parallel=job.settings.sequence_parallel and t > 1,
                )  # fmt: skip
                if p > 1 and one.microbatches > 4096:
                    continue
                for passes in _passes(plan, one):
                    if _legal(plan, passes):
                        yield from _runnable(plan, passes, modes)


def _runnable(plan: JobPlan, passes: Layout, modes: list[frozenset[Recompute]]) -> Iterator[Layout]:
    """Yield a point with every set of recomputed modules that the launcher can run there."""
    some = replace(passes, recompute=_FULL, recompute_layers=0)
    counted = _FULL in modes and plan.job.counts_layers(some)
    for mode in modes:
        if counted and not mode and not plan.model.mtp:
            continue  # of those that count, none counted; predictions are not among them
        one = replace(passes, recompute=mode)
        if runs(plan.job.launcher, one) is None:
            yield one
    if counted and runs(plan.job.launcher, some) is None:
        yield some


def _modes(plan: JobPlan) -> list[frozenset[Recompute]]:
    """Return the sets of recomputed modules that the model has, and the empty one."""
    model, found = plan.model, [frozenset[Recompute](), *plan.job.modes]
    there = {Recompute.FULL}
    for block in model.layer_types:
        if block.profiled is not None:
            continue
        there |= {Recompute.LAYERNORM, Recompute.OPERATORS}
        if block.attention is not None and block.attention.latent:
            there.add(Recompute.MLA_UP_PROJECTION)
        if block.feed_forward is not None:
            there.add(Recompute.MLP)
        if block.experts is not None:
            there |= {Recompute.MOE, Recompute.MOE_ACTIVATION}
            if block.experts.shared is not None:
                there.add(Recompute.SHARED_EXPERTS)
    kept = {mode for mode in found if mode <= there}
    return sorted(kept, key=sorted)


def _passes(plan: JobPlan, one: Layout) -> Iterator[Layout]:
    """Yield a division with every schedule, number of chunks and ZeRO stage."""
    job: TrainingJob = plan.job
    copies = one.replicas
    if any(block.experts is not None for block in plan.model.layer_types):
        copies = max(copies, one.expert_data)  # tensor-parallel ranks may hold whole experts
    stages = job.zero_stages(one.pipeline)
    if copies == 1:  # nothing is divided; ZeRO 3 frees activations layer by layer
        stages = tuple(z for z in stages if z in (min(stages), 3))
    chunks = job.allowed("chunks") or range(1, 13)
    orders = [JobSchedule.ONE_F_ONE_B] if one.pipeline == 1 else job.orders
    for schedule, v, z in itertools.product(orders, chunks, stages):
        several = schedule is JobSchedule.INTERLEAVED
        if several != (v > 1):
            continue
        layers, count = plan.model.layers, v * one.pipeline
        extra = range(3 + len(plan.model.mtp))
        if several and (count > layers or all((layers + k) % count for k in extra)):
            continue
        yield replace(one, schedule=schedule, chunks=v, zero=z)


def _legal(plan: JobPlan, layout: Layout) -> bool:
    try:
        check_layout(plan.model, layout, plan.cluster)
    except InputError:
        return False
    return True


def _check_counts(plan: JobPlan, points: list[Layout]) -> None:
    """Hold the certificate's table against the points that there are."""
    found: dict[tuple[int, ...], int] = {}
    for one in points:
        key = (one.tensor, one.context, one.pipeline, one.data, one.expert, one.expert_tensor)
        found[key] = found.get(key, 0) + 1
    claimed: dict[tuple[int, ...], int] = {}
    for row in plan.certificate.rows:
        key = (row.tensor, row.context, row.pipeline, row.data, row.expert, row.expert_tensor)
        claimed[key] = claimed.get(key, 0) + sum(row.points.values())
    if found != claimed:
        wrong = sorted(k for k in found.keys() | claimed.keys() if found.get(k) != claimed.get(k))
        raise VerificationError(
            f"certificate: TP, CP, PP, DP, EP, ETP {wrong[0]}: it counts "
            f"{claimed.get(wrong[0], 0)} points; there are {found.get(wrong[0], 0)}"
        )


# Points that need no program.


def _work(job: TrainingJob, layout: Layout, prices: LayerPrices) -> float:
    """Return the whole model's work for all microbatches over a point's pipeline ranks."""
    times = prices.times(layout)
    blocks = times.blocks if job.counts_layers(layout) else times.recomputed
    once = sum(blocks[kind].forward + blocks[kind].backward for kind in prices.kinds)
    once += sum(part.forward + part.backward for part in (times.embedding, times.head))
    m, p = layout.microbatches, layout.pipeline
    if layout.schedule in (JobSchedule.ONE_F_ONE_B, JobSchedule.GPIPE):
        # No rank begins before the passes of those before it, nor ends before theirs behind it.
        return once / (1 - (1 - 1 / m) ** p)
    return m * once / p


def _without_pipeline(plan: JobPlan, layout: Layout, prices: LayerPrices) -> float:
    """Return the least seconds over all numbers of recomputed layers that fit."""
    limit = _limit(plan)
    if plan.job.counts_layers(layout):
        plans = [replace(layout, recompute_layers=k) for k in range(plan.model.layers + 1)]
    else:
        plans = [layout]
    fit = [one for one in plans if rank_memory(plan.model, one).needed <= limit]
    return min((one.seconds for one in iteration_times(fit, prices)), default=np.inf)


def _limit(plan: JobPlan) -> float:
    least = min(nodes.accelerator.memory_bytes for nodes in plan.cluster.nodes)
    return min(least, plan.job.memory_bytes or np.inf)


# Points in a pipeline.


@dataclass(frozen=True)
class _Plane:
    """A value at `PROBED` layers of each type per stage, and what a layer more changes.

    Parameters
    ----------
    base
        The value there.
    more, again
        Shape (chunks, types, …): by one layer, and by one recomputed layer.
    first
        By the first recomputed layer beyond that.
    """

    base: Floats
    more: Floats
    again: Floats
    first: float = 0.0


class _PointProof:
    """The program of a point: columns n (stages, types), r alike, y (ranks), T, H."""

    def __init__(self, plan: JobPlan, layout: Layout, prices: LayerPrices) -> None:
        self.plan, self.layout, self.prices = plan, layout, prices
        self.model = plan.model
        types = self.model.types_of_layers[: self.model.layers]
        self.types = sorted(set(types))
        self.count = np.array([types.count(kind) for kind in self.types], dtype=float)
        self.order = types
        self.stages, self.ranks = layout.stages, layout.pipeline
        self.recomputes = plan.job.counts_layers(layout)
        k = len(self.types)
        size = self.stages * k
        self.n = np.arange(size).reshape(self.stages, k)
        self.r = size + self.n
        self.y = 2 * size + np.arange(self.ranks)
        self.z = 2 * size + self.ranks + np.arange(self.stages)
        self.t, self.h = (
            2 * size + self.ranks + self.stages,
            2 * size + self.ranks + self.stages + 1,
        )
        self.columns = self.h + 1
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.times = prices.times(layout)
        self.held = [
            rank_parameters(block, self.model.hidden, layout) for block in self.model.layer_types
        ]
        self.sent = message_time(layout, prices)
        self.middle: _Plane | None = None
        self.unit = 1 / plan.bound  # columns T and H count in bounds
        self.divided = RankStages.of(plan.model, layout)

    # Probes.

    def _own(self, more: int | None = None) -> tuple[int, ...]:
        """Return the layer types of a probed stage, with one of type `more` more, those first."""
        own = [kind for kind in self.types for _ in range(PROBED)]
        if more is not None:
            own = [more] * (PROBED + 1) + [kind for kind in own if kind != more]
        return tuple(own)

    def _leading(self, kind: int) -> tuple[int, ...]:
        own = self._own()
        return tuple(sorted(own, key=lambda one: (one != kind, one)))

    def _stage(self, s: int, own: tuple[int, ...], again: int) -> StageTime:
        again = again if self.recomputes else len(own)  # the modules of the set, in every layer
        ends = (s == 0, s == self.stages - 1)
        further = bool(self.model.mtp) and s == self.layout.mtp_stage % self.stages
        return stage_time(
            self.layout, self.prices, self.times, self.held, own, again, *ends, further
        )

    def _stage_plane(self, s: int) -> _Plane:
        """Return F, B and W of a stage as a plane."""
        if 1 < s < self.stages - 1 and self.middle is not None:
            return self.middle
        base = _three(self._stage(s, self._own(), 0))
        more = [_three(self._stage(s, self._own(kind), 0)) - base for kind in self.types]
        again = [_three(self._stage(s, self._leading(kind), 1)) - base for kind in self.types]
        plane = _Plane(base, np.array(more), np.array(again) * self.recomputes)
        if s == 1:
            self.middle = plane
        return plane

    def _memory_plane(self, rank: int) -> _Plane:
        """Return the bytes of a rank as a plane over its chunks."""
        own = list(self.layout.rank_stages(rank))

        def needed(stage: int | None, kinds: tuple[int, ...], again: int) -> float:
            stages = [self._own() for _ in range(self.stages)]
            counts = [0] * self.stages
            if stage is not None:
                stages[stage], counts[stage] = kinds, again
            layout = replace(
                self.layout, recompute_layers=tuple(counts) if self.recomputes else None
            )
            divided = replace(self.divided, stages=tuple(stages))
            return rank_memory(self.model, layout, rank, divided).needed

        base = needed(None, (), 0)
        more, again, first = [], [], 0.0
        for stage in own:
            more.append([needed(stage, self._own(kind), 0) - base for kind in self.types])
            row = []
            for kind in self.types if self.recomputes else ():
                once, twice = (needed(stage, self._leading(kind), x) for x in (1, 2))
                row.append(twice - once)
                rise = once - base - (twice - once)
                first = rise if not first else min(first, rise)
            again.append(row or [0.0] * len(self.types))
        # A rank may have layers of one type alone, which need less to work with than another.
        slopes = np.array(more)
        alone = min(
            self._needed_by(rank, kind) - PROBED * slopes[:, k].sum()
            for k, kind in enumerate(self.types)
        )
        base = min(base, alone + PROBED * slopes.sum())
        return _Plane(np.array(base), slopes, np.array(again), max(0.0, first))

    def _needed_by(self, rank: int, kind: int) -> float:
        """Return the bytes of a rank whose stages have layers of one type."""
        counts = tuple([0] * self.stages) if self.recomputes else None
        layout = replace(self.layout, recompute_layers=counts)
        divided = replace(self.divided, stages=((kind,) * PROBED,) * self.stages)
        return rank_memory(self.model, layout, rank, divided).needed

    def _beside_plane(self, rank: int) -> _Plane:
        """Return exposed traffic and the optimizer's step of a rank as a plane over its chunks."""
        own = list(self.layout.rank_stages(rank))

        def beside(stage: int | None, kinds: tuple[int, ...], again: int) -> float:
            held = [
                self._stage(s, kinds if s == stage else self._own(), again if s == stage else 0)
                for s in own
            ]
            dense, routed = sum(s.dense for s in held), sum(s.routed for s in held)
            step = optimizer_step(self.layout, self.prices, dense, routed)
            return exposed_traffic(self.layout, self.prices, held) + step

        base = beside(None, (), 0)
        more = [[beside(s, self._own(kind), 0) - base for kind in self.types] for s in own]
        again = [
            [(beside(s, self._leading(kind), 1) - base) * self.recomputes for kind in self.types]
            for s in own
        ]
        return _Plane(np.array(base), np.array(more), np.array(again))

    def _too_large(self) -> bool:
        """Whether all ranks together have too few bytes, were each as empty as the emptiest.

        With all layers recomputed, as far as the point allows, a layer takes at least what it takes
        on the last rank.
        """
        flights = [passes_in_flight(self.layout, rank) for rank in range(self.ranks)]
        every = np.array([list(one.values()) for one in flights])
        if (every < every[-1]).any():
            return False
        planes = {rank: self._memory_plane(rank) for rank in {0, self.ranks // 2, self.ranks - 1}}
        each = (planes[self.ranks - 1].more + planes[self.ranks - 1].again).min(axis=0)
        fixed = {
            rank: float(plane.base - PROBED * plane.more.sum()) for rank, plane in planes.items()
        }
        middle = min(fixed.values())
        needed = float(each @ self.count) + sum(fixed.get(k, middle) for k in range(self.ranks))
        return needed > self.ranks * _limit(self.plan) * (1 + MARGIN)

    # Rows.

    def _state(self) -> None:
        """State all rows but those of paths."""
        layout, limit = self.layout, _limit(self.plan)
        for j in range(len(self.types)):
            self.add({int(x): 1.0 for x in self.n[:, j]}, self.count[j], self.count[j])
        low, high = self._range()
        for s in range(self.stages):
            self.add({int(x): 1.0 for x in self.n[s]}, low[s], high[s])
            for j, most in enumerate(self.count):
                self.add({int(self.r[s, j]): 1.0, int(self.n[s, j]): -1.0}, -np.inf, 0.0)
                pair = {int(self.r[s, j]): 1.0, int(self.y[s % self.ranks]): -float(most)}
                self.add(pair, -np.inf, 0.0)
        if self.recomputes and not self.plan.job.settings.recompute_by_stage:
            for s in range(1, self.stages):
                row = {int(x): 1.0 for x in self.r[s]} | {int(x): -1.0 for x in self.r[0]}
                self.add(row, 0.0, 0.0)
        self._order_of_types()
        for rank in range(self.ranks):
            own = list(layout.rank_stages(rank))
            row, base = self._on_plane(self._memory_plane(rank), own)
            row[int(self.y[rank])] = self._memory_plane(rank).first
            scaled = {x: value / limit for x, value in row.items()}
            self.add(scaled, -np.inf, (limit - base) / limit)
            row, base = self._on_plane(self._beside_plane(rank), own)
            row, base = {x: value * self.unit for x, value in row.items()}, base * self.unit
            self.add({int(self.h): 1.0, **{x: -value for x, value in row.items()}}, base, np.inf)

    def _on_plane(self, plane: _Plane, own: list[int]) -> tuple[dict[int, float], float]:
        """Return a plane as a row's entries over n and r, and its constant."""
        row: dict[int, float] = {}
        base = float(plane.base)
        for j, s in enumerate(own):
            for i in range(len(self.types)):
                row[int(self.n[s, i])] = float(plane.more[j, i])
                row[int(self.r[s, i])] = float(plane.again[j, i])
                base -= PROBED * float(plane.more[j, i])
        return row, base

    def _range(self) -> tuple[Floats, Floats]:
        """Return the declared least and most layers of each stage."""
        layers, stages = self.model.layers, self.stages
        if self.layout.chunks == 1:
            return np.ones(stages), np.full(stages, float(layers))
        low, high = np.full(stages, layers // stages), np.zeros(stages)
        units = layers + 2 + len(self.model.mtp)
        high[:] = -(-units // stages)
        for at, fewer in ((0, 1), (-1, 1 + len(self.model.mtp))):
            low[at] -= fewer
            high[at] -= fewer
        low = np.maximum(low, 1)
        return low.astype(float), np.maximum(low, high).astype(float)

    def _order_of_types(self) -> None:
        """Where the second of two types follows the first once, stages keep that order."""
        first = self.order[0]
        lead = next((k for k, kind in enumerate(self.order) if kind != first), 0)
        if len(self.types) != 2 or any(kind == first for kind in self.order[lead:]):
            return
        a, b = self.types.index(first), 1 - self.types.index(first)
        for s in range(self.stages):
            self.add(
                {int(self.n[s, b]): 1.0, int(self.z[s]): self.count[b]}, -np.inf, self.count[b]
            )
            if s:
                pair = {int(self.n[s, a]): 1.0, int(self.z[s - 1]): -self.count[a]}
                self.add(pair, -np.inf, 0.0)

    def add(self, row: dict[int, float], low: float, high: float) -> None:
        """Add a row."""
        self.rows.append((row, float(low), float(high)))

    def add_paths(self, passes: Floats) -> int:
        """Add the longest paths where stages take so long, and where each rank takes more."""
        before = len(self.known)
        for counts, messages in longest_paths(self.layout, passes, self.sent):
            key = counts.tobytes()
            if key in self.known:
                continue
            self.known.add(key)
            row, least = {int(self.t): 1.0}, messages * self.sent * self.unit
            for s in np.flatnonzero(counts.any(axis=1)):
                plane, each = self.passes[s], counts[s] * self.unit
                least += float(each @ plane.base)
                for i in range(len(self.types)):
                    more = float(each @ plane.more[i])
                    row[int(self.n[s, i])] = -more
                    row[int(self.r[s, i])] = -float(each @ plane.again[i])
                    least -= PROBED * more
            self.add(row, least, np.inf)
        return len(self.known) - before

    def seconds(self, x: Floats) -> Floats:
        """Return the passes of every stage in a solution, shape (stages, 3)."""
        found = np.zeros((self.stages, 3))
        for s, plane in enumerate(self.passes):
            found[s] = plane.base + (x[self.n[s]] - PROBED) @ plane.more
            found[s] += x[self.r[s]] @ plane.again
        return np.maximum(found, 0.0)

    def ruled_out(self, least: float) -> bool:
        """Whether no plan at this point takes less than `least` seconds."""
        if self._too_large():
            return True
        self.passes = [self._stage_plane(s) for s in range(self.stages)]
        self._state()
        self.known: set[bytes] = set()
        even = np.array([plane.base for plane in self.passes])
        self.add_paths(even)
        constant = self.prices.calibration.step + tied_all_reduce(self.layout, self.prices)
        self.add({int(self.t): 1.0, int(self.h): 1.0}, -np.inf, (least - constant) * self.unit)
        for whole in (False, True):
            for _ in range(ROUNDS):
                x = self._solve(whole)
                if x is None:
                    return True
                if not self.add_paths(self.seconds(x)):
                    break
        return False

    def _solve(self, whole: bool) -> Floats | None:
        """Return a solution below the bound, None if there is none."""
        where = [
            (k, x, value) for k, (row, _, _) in enumerate(self.rows) for x, value in row.items()
        ]
        k, x, value = (np.array(column) for column in zip(*where, strict=True))
        matrix = csr_array((value, (k, x)), shape=(len(self.rows), self.columns))
        low, high = (np.array([row[j] for row in self.rows]) for j in (1, 2))
        upper = np.full(self.columns, np.inf)
        upper[self.n] = upper[self.r] = self.count
        upper[self.y], upper[self.z] = 1.0, 1.0
        if not self.recomputes:
            upper[self.r] = 0.0
        integer = np.full(self.columns, int(whole))
        integer[[self.t, self.h]] = 0
        cost = np.zeros(self.columns)
        cost[[self.t, self.h]] = 1.0
        found = milp(
            cost,
            constraints=LinearConstraint(matrix, low, high),
            integrality=integer,
            bounds=Bounds(np.zeros(self.columns), upper),
        )
        if found.status == 2:
            return None
        if found.x is None:
            raise VerificationError(f"bound: SciPy's solver ended with {found.message!r}")
        return np.asarray(found.x)


def _three(stage: StageTime) -> Floats:
    return np.array([stage.forward, stage.backward, stage.weights])


def longest_paths(layout: Layout, passes: Floats, sent: float) -> list[tuple[Floats, float]]:
    """Return the longest path of a schedule, and those where each rank is 3 % or half slower.

    Returns
    -------
    list of (array, float)
        How often a path has F, B (whole) and W of each stage, shape (stages, 3), and messages.
    """
    p, stages = layout.pipeline, layout.stages
    steps = schedule_steps(layout.schedule.value, p, layout.chunks, layout.microbatches)
    count = len(steps.task)
    kinds = 1 + 2 * p
    scale = np.ones((stages, kinds))
    for rank in range(p):
        scale[rank::p, 1 + rank] = 1.03
        scale[rank::p, 1 + p + rank] = 1.5
    split = bool((steps.task % 3 == 2).any())
    duration = np.empty((3 * stages, kinds))
    duration[0::3], duration[2::3] = passes[:, :1] * scale, passes[:, 2:] * scale
    duration[1::3] = (passes[:, 1:2] - (passes[:, 2:] if split else 0.0)) * scale
    end = np.zeros((count + 1, kinds))
    for first, last in itertools.pairwise(steps.start.tolist()):
        arrives = end[steps.needs[first:last]] + steps.remote[first:last, None] * sent
        ready = np.maximum(end[steps.before[first:last]], arrives)
        end[first:last] = ready + duration[steps.task[first:last]]
    at = end[:count].argmax(axis=0)
    tally, messages = np.zeros((kinds, 3 * stages)), np.zeros(kinds)
    rows = np.arange(kinds)
    while (alive := at < count).any():
        here, own = rows[alive], at[alive]
        np.add.at(tally, (here, steps.task[own]), 1.0)
        arrives = end[steps.needs[own], here] + steps.remote[own] * sent
        needs = (steps.needs[own] < count) & (arrives > end[steps.before[own], here])
        needs |= steps.before[own] == count
        messages[here] += needs * steps.remote[own]
        at[alive] = np.where(needs, steps.needs[own], steps.before[own])
    found = []
    for row, moved in zip(tally.reshape(kinds, stages, 3), messages, strict=True):
        path = row.copy()
        if split:
            path[:, 2] -= row[:, 1]
        else:
            path[:, 2] = 0.0
        found.append((path, float(moved)))
    return found
