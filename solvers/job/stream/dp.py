"""Streams by dynamic programming over the lattice of ideals, exact.

For a cap T on the time of every stage, a run over the lattice answers whether a plan exists;
bisection over T brackets the least one. Since the states are only (ideal, devices of each kind,
replicas) with the undominated ones kept, a cap costs milliseconds on layer graphs. A first bracket
comes from one topological order alone.

Complexity: per cap, pairs of nested ideals × degrees × undominated labels. Ideals from which the
units outside cannot be served by the devices left (Σ least t·p / T > devices) are not extended.

References
----------
The recurrence of Piper (NeurIPS 2021, section 4.1), decided for one cap at a time; its inner
knapsack is solved exactly instead of by a rule. Several kinds of devices are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from ....formulations.job.stream import STATE_PER_WEIGHT, Staging, state_staging
from ....formulations.job.stream_bounds import least_stage_time, option_units
from ....formulations.task import Task
from ....formulations.throughput.hypergraph import incidence
from ....instances import PipelineJob, Solution, in_stages
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.units import show_bytes, show_count
from ...core.lattice import Lattice, chain, list_ideals
from ...core.search import Search
from .dp_kernel import (
    Labels,
    Query,
    StreamData,
    UnitOptions,
    configure,
    extend_plans,
    in_flight,
    no_labels,
    price_stage,
)

#: Term of a stage's memory: fixed bytes besides weights, gradients and known optimizer state.
FIXED = "fixed bytes besides (optimizer state in the file, recomputed activations)"


@dataclass(frozen=True, eq=False)
class StageChoice:
    """A stage of a plan: its units, numbers of kind, degree and divisor, replicas behind it."""

    units: Ints
    kind: int
    degree: int
    divisor: int
    behind: int


class Planner:
    """Planner of a stream on a lattice: finds plans whose stages keep a cap on TPS.

    Parameters
    ----------
    greedy
        Configure stages by the authors' rule instead of the exact knapsack.
    """

    def __init__(
        self, task: Task[PipelineJob], staging: Staging, lattice: Lattice, greedy: bool
    ) -> None:
        self.task = task
        self.staging = staging
        self.lattice = lattice
        self.data = stream_data(staging, lattice, greedy)
        work = np.min(self.data.fast * staging.degrees[:, None], axis=0)
        below = lattice.sums(work)
        #: Least device-time of the units outside each ideal, on devices without slowdown.
        self.outside: Floats = below[-1] - below
        self.torn = np.zeros(lattice.size, np.bool_)
        for a, b in staging.uncut.tolist():
            self.torn |= lattice.has(a) != lattice.has(b)
        self.gave_up = False

    def plan(
        self,
        within: float,
        search: Search[Solution],
        *,
        capacity: Floats | None = None,
    ) -> tuple[StageChoice, ...] | None:
        """Return a plan with all TPS_i ≤ `within`, None if there is none or the search must stop.

        A device of each kind has the memory `capacity`, by default the cluster's.
        """
        rules = self.staging.rules
        sizes = [size for size in self.staging.sizes() if rules.why_not(size) is None]
        limit = self.staging.problem.placement_rules.max_stages or 0
        for size in sizes if rules.pins else [0]:
            at = self._pinned(size) if size else np.zeros((0, 0), np.bool_)
            found = self._best(within, search, capacity, size or limit, at)
            if found is None:
                return None
            if found:
                return found
        return None

    def _pinned(self, size: int) -> Bools:
        """Return, shape (size + 1, N), which ideals can be the last so many of `size` stages."""
        at = np.ones((size + 1, self.lattice.size), np.bool_)
        at[:size, -1] = False
        for unit, own in self.staging.rules.stages(size).items():
            at &= self.lattice.has(unit) == (own >= size - np.arange(size + 1))[:, None]
        return at

    def _best(
        self,
        within: float,
        search: Search[Solution],
        capacity: Floats | None,
        most_stages: int,
        at: Bools,
    ) -> tuple[StageChoice, ...] | None:
        """Return the plan of fewest devices; () if there is none, None if the search must stop.

        It has at most `most_stages` stages, 0 for any number; with `at` (see `Query`), exactly so
        many.
        """
        lattice, slowdown = self.lattice, self.staging.slowdown
        rest = self.outside / within * (1 - 1e-9)
        if len(slowdown) == 1:
            rest = np.ceil(rest * slowdown[0]) / slowdown[0]
        rest = np.maximum(rest, 1 / slowdown.max())
        rest[-1] = 0
        rest[self.torn] = np.inf
        query = Query(
            within=within,
            # a copy that can be written, so that its type is one and the kernel compiled once
            capacity=np.array(self.staging.capacity if capacity is None else capacity),
            most_stages=most_stages,
            rest=rest,
            at=at,
        )
        labels = no_labels(lattice.size, len(slowdown), by_stages=len(at) > 0)
        with search.flag() as halt:
            labels = extend_plans(0, lattice.size - 1, self.data, query, labels, halt)
        if halt[0]:
            return None
        self.gave_up |= bool(labels.tally[1])
        ends = []
        label = int(labels.head[-1])
        while label >= 0:
            ends.append(label)
            label = int(labels.following[label])
        if not ends:
            return ()
        used = labels.devices.sum(axis=1)
        best = min(ends, key=lambda x: (int(used[x]), int(labels.replicas[x])))
        return self._trace(labels, best)

    def _trace(self, labels: Labels, label: int) -> tuple[StageChoice, ...]:
        """Return the stages that led to a label, first stage of the pipeline first."""
        stages = []
        while labels.made[label, 0] >= 0:
            parent, kind, degree, divisor = labels.made[label].tolist()
            ends = int(labels.ideal[parent]), int(labels.ideal[label])
            stages.append(
                StageChoice(
                    self.lattice.between(*ends),
                    kind,
                    degree,
                    divisor,
                    int(labels.replicas[parent]),
                )
            )
            label = parent
        return tuple(stages)

    def configured(self, chosen: tuple[StageChoice, ...]) -> tuple[Solution, list[float]]:
        """Return the plan with the best configurations, and the time of each stage."""
        staging = self.staging
        stages, times = [], []
        for part in chosen:
            d = int(staging.divisors[part.divisor])
            time, options = self._configure(part, d)
            times.append(time)
            stages.append(staging.stage(part.units, options, d, part.degree, part.kind))
        return in_stages(stages, self.task.cluster), times

    def _configure(self, part: StageChoice, d: int) -> tuple[float, list[int]]:
        """Return the time of a stage and the numbers of its units' configurations."""
        data, staging = self.data, self.staging
        inside = np.zeros(staging.size, np.bool_)
        inside[part.units] = True
        count = len(part.units)
        filled = UnitOptions(
            np.zeros(count + 1, np.int64), *(np.zeros(len(data.time)) for _ in range(4))
        )
        choice = np.zeros(count, np.int64)
        gave_up = np.zeros(1, np.int64)
        transfer = price_stage(data, part.units, inside, part.kind, part.degree, filled)
        least = configure(
            data, filled, count,
            (data.kappa[part.degree, part.divisor], in_flight(data, d, part.behind)),
            (staging.capacity[part.kind], math.inf), False, (choice, gave_up),
        )  # fmt: skip
        options = [
            staging.choices(unit, part.degree)[int(choice[i] - filled.item[i])]
            for i, unit in enumerate(part.units.tolist())
        ]
        return float((least + transfer) / d), options

    def least_memory(self, part: StageChoice) -> tuple[float, dict[str, float]]:
        """Return the bytes that a stage needs at least on each device, in all and by term."""
        staging = self.staging
        y = staging.in_flight(int(staging.divisors[part.divisor]), part.behind)
        terms = dict.fromkeys(
            ("activations", "weights and gradients", "optimizer state", FIXED), 0.0
        )
        problem = staging.problem
        per_weight = STATE_PER_WEIGHT[problem.precision][problem.optimizer]
        for unit in part.units.tolist():
            c = min(
                staging.choices(unit, part.degree),
                key=lambda c: staging.per_microbatch[c] * y + staging.fixed[c],
            )
            state = float(per_weight * staging.weight[c])
            fixed = float(staging.fixed[c]) - state
            weights = min(2 * float(staging.weight[c]), fixed)
            terms["activations"] += float(staging.per_microbatch[c] * y)
            terms["weights and gradients"] += weights
            terms["optimizer state"] += state
            terms[FIXED] += fixed - weights
        return sum(terms.values()), terms


#: Relative width of the bracket at which the search ends.
CLOSE = 1e-9


#: Ideals that are listed at most; beyond, only one topological order is planned.
MOST_IDEALS = 3_000_000


#: Ideals up to which the least sufficient memory is sought over all of them.
FEW_IDEALS = 2_000


#: Origin of the bounds of this dynamic program.
ORIGIN = "dynamic program over ideals"


def stream_dp(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Find the best training plan, and prove it."""
    _run(task, search, greedy=False)


def piper(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Plan with the authors' rule for configurations instead of the exact knapsack: a baseline."""
    _run(task, search, greedy=True)


def _run(task: Task[PipelineJob], search: Search[Solution], greedy: bool) -> None:
    staging = state_staging(task)
    if (reason := staging.why_no_size()) is not None:
        search.prove_infeasible(reason)
        return
    with search.phase("build"):
        line = Planner(task, staging, chain(np.arange(staging.size)), greedy)
    with search.phase("solve"):
        _minimise(line, search, exact=False)
    if search.should_stop():
        return
    with search.phase("build"):
        # an ideal is closed under successors here: plans grow from their end
        units = np.arange(staging.size)
        lattice = list_ideals(units, staging.edges[:, ::-1], MOST_IDEALS, search)
        if not lattice.complete:
            if not search.should_stop():
                search.note(
                    f"more than {MOST_IDEALS} ideals: the plan is the best of one topological "
                    "order, and others may be better"
                )
            return
        planner = Planner(task, staging, lattice, greedy)
    with search.phase("solve"):
        _minimise(planner, search, exact=not greedy)
        if search.best is None and not greedy and not search.should_stop() and not planner.gave_up:
            few = lattice.size <= FEW_IDEALS
            search.prove_infeasible(_why_infeasible(planner if few else line, search))
    if search.best is None and greedy and not search.should_stop():
        search.note("piper: no plan found by the greedy rule; others may exist")
    if planner.gave_up:
        search.note("a knapsack was too hard: the plan may not be the best one")


def _minimise(planner: Planner, search: Search[Solution], exact: bool) -> None:
    """Bracket the least cap; every plan found pulls the upper end down to its own maximum.

    Bounds are raised only if `exact`.
    """
    if float(np.max(np.min(planner.data.light, axis=0))) > planner.staging.capacity.max():
        return  # one layer alone does not fit
    if math.isinf(least_stage_time(planner.staging)):
        return  # or fits on no device that could take it
    low = least_stage_time(planner.staging)
    high = search.objective
    if math.isinf(high):
        chosen = planner.plan(math.inf, search)
        if chosen is None:
            return
        high = _offer(planner, chosen, search)
    failed, first = False, True
    while high > low * (1 + CLOSE) and not search.should_stop():
        # at first and close to the end, one look just below the best plan may decides it
        decides = not failed and (first or high <= low * 1.002)
        first = False
        within = high * (1 - CLOSE / 2) if decides else (low + high) / 2
        chosen = planner.plan(within, search)
        if chosen is not None:
            high = min(high, _offer(planner, chosen, search))
            failed = False
        elif search.should_stop():
            return
        else:
            low, failed = within, True
            if exact and not planner.gave_up:
                search.raise_bound(low, ORIGIN)


def _offer(planner: Planner, chosen: tuple[StageChoice, ...], search: Search[Solution]) -> float:
    solution, times = planner.configured(chosen)
    search.offer(solution)
    return max(times)


def _why_infeasible(planner: Planner, search: Search[Solution]) -> str:
    """Say which stage needs how many bytes too many, or that memory is not the reason."""
    staging = planner.staging
    chosen = planner.plan(math.inf, search, capacity=np.full(len(staging.kinds), np.inf))
    if chosen is None:
        return (
            f"no plan keeps the rules on {show_count(int(staging.count.sum()), 'device')}, however "
            "much memory there is; allow more degrees, replicas, stages or devices"
        )
    memories = [planner.task.cluster.kinds[k].memory_bytes for k in staging.kinds.tolist()]
    if len(memories) > 1:
        pairs = zip(staging.count.tolist(), memories, strict=True)
        there = ", ".join(f"{show_count(n, 'device')} of {size:.0f} bytes" for n, size in pairs)
        return f"no plan fits on {there}; give more memory or more devices"
    given = memories[0]
    low, need = given, _needed(planner, chosen)
    best = chosen
    while need > low + 1 and need > low * (1 + 1e-6) and not search.should_stop():
        tried = planner.plan(math.inf, search, capacity=np.array([(low + need) / 2]))
        if tried is None:
            low = (low + need) / 2
        else:
            best, need = tried, _needed(planner, tried)
    stage = max(best, key=lambda part: planner.least_memory(part)[0])
    ids = planner.staging.workload.ids
    nodes = sorted(int(v) for v in planner.staging.node_of[stage.units])
    terms = planner.least_memory(stage)[1]
    shown = ", ".join(f"{show_bytes(size)} {name}" for name, size in terms.items() if size)
    largest = max(terms, key=lambda name: terms[name])
    return (
        f"{show_bytes(given)} per device are too little: a plan is known that needs "
        f"{show_bytes(need)}, {show_bytes(need - given)} more; its largest stage, with nodes "
        f"{ids[nodes[0]]} to {ids[nodes[-1]]}, needs {shown}; most are {largest}"
    )


def _needed(planner: Planner, chosen: tuple[StageChoice, ...]) -> float:
    return max(planner.least_memory(part)[0] for part in chosen)


def stream_data(staging: Staging, lattice: Lattice, greedy: bool) -> StreamData:
    """Return the arrays that the kernels read."""
    size, degrees = staging.size, len(staging.degrees)
    nets = incidence(staging.edges.tolist(), np.arange(size))
    edge, at = nets.unit_nets, np.repeat(np.arange(size), np.diff(nets.unit_ptr))
    # a schedule with versions of the weights may give negative `fixed`: y is at least 1
    least_size = staging.per_microbatch + staging.fixed
    fast, light = np.full((2, degrees, size), np.inf)
    unit, degree = option_units(staging)
    np.minimum.at(fast, (degree, unit), staging.time)
    np.minimum.at(light, (degree, unit), least_size)
    pairs = staging.rules.units_apart
    apart = np.zeros((size, size) if pairs else (0, 0), np.bool_)
    for a, b in pairs:
        apart[a, b] = apart[b, a] = True
    kappa = [[staging.kappa(t, d) for d in staging.divisors.tolist()] for t in range(degrees)]
    same = [one.name for one in fields(staging) if one.name in StreamData._fields]
    return StreamData(
        **{name: getattr(staging, name) for name in same},
        start=lattice.start,
        unit=lattice.unit,
        to=lattice.to,
        devices=staging.count,
        incident_start=nets.unit_ptr,
        incident=edge,
        other=staging.edges[edge].sum(axis=1) - at,
        fast=fast,
        light=light,
        kappa=np.array(kappa),
        apart=apart,
        gpipe=staging.problem.in_flight == "gpipe",
        greedy=greedy,
    )
