"""A stream of microbatches: the statement that its planners share, with costs as arrays.

A plan cuts the DAG into stages S_1 … S_r, all edges leading forward, with d_i replicas of tensor
degree t_i, and one configuration c of degree t_i for each node. A stage's time per microbatch is

    TPS_i = (transfer(S_i) + Σ_{v∈S_i} cost(c_v)) / d_i
    transfer(S) = Σ_{cut edges e} 2 bytes_e / B
    cost(c)     = p_c + Σ_{cut edges e at its node} 2 sync_{c,e} / B + κ(t, d) w_c
    κ(t, d)     = 4 (d − 1) / (N B')       B': within a server, else B; schedule pipedream: d for N

and it needs Σ_v (a_c y_i + b_c) ≤ M bytes with y_i = ⌈(d_i + … + d_r)/d_i⌉ microbatches in flight.
For given S, t, d and y, choosing the configurations is a multiple-choice knapsack: least Σ cost
within M. The objective, to be minimised, is max TPS_i.

Units are the nodes, numbered against the direction of the edges: pipelines are built from their
end, because y depends on the replicas of later stages.

References
----------
Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization",
NeurIPS 2021, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...instances import TIME_UNITS, InputError, Layers, PipelineJob, Stage, Workload, layers_of
from ...instances.common.arrays import Bools, Floats, Ints, frozen
from ...instances.common.units import show_count
from ..rules.stages import StageRules, stage_rules
from ..task import Task
from ..throughput.whole_bytes import room_of

#: Optimizer state in bytes per byte of weights, by precision and optimizer.
STATE_PER_WEIGHT = {
    "fp32": {"as-given": 0.0, "sgd": 0.0, "momentum": 1.0, "adam": 2.0},
    "mixed": {"as-given": 0.0, "sgd": 2.0, "momentum": 4.0, "adam": 6.0},
}


@dataclass(frozen=True, eq=False)
class Staging:
    """A stream's task as arrays; U units, T degrees, C allowed configurations, m edges."""

    #: Workload, its layers, and the problem, as the user gave them.
    workload: Workload
    layers: Layers
    problem: PipelineJob
    #: Microbatches N; bandwidths B and B' in bytes per time unit.
    microbatches: int
    bandwidth: float
    server_bandwidth: float
    #: Largest number of replicas of all stages, Σ d_i.
    most_replicas: int
    #: Numbers of the kinds of devices that are not hosts, of which there is at least one.
    kinds: Ints
    #: For each of these kinds: number of devices, memory of one in bytes (with room for rounding),
    #: and factor on times.
    count: Ints
    capacity: Floats
    slowdown: Floats
    #: Node of each unit, and unit of each node: units are in reverse topological order.
    node_of: Ints
    unit_of: Ints
    #: Shape (T,): tensor degrees that some configuration has, increasing.
    degrees: Ints
    #: Shape (T·U + 1,): the configurations of degree number t of unit u are first[t·U + u] …
    #: first[t·U + u + 1] − 1.
    first: Ints
    #: Shape (C,): position in `layers`.
    configuration: Ints
    #: Shape (C,): p, w, a, b; a and b include schedule and optimizer.
    time: Floats
    weight: Floats
    per_microbatch: Floats
    fixed: Floats
    #: Shape (m, 2): units (from, to), in the order of the workload's edges, so from > to.
    edges: Ints
    #: Shape (m,): 2 bytes / B.
    edge_time: Floats
    #: Rows per configuration: edges and 2 sync / B.
    sync_start: Ints
    sync_edge: Ints
    sync_time: Floats
    #: Possible numbers of replicas, increasing: divisors of N; with schedule pipedream all numbers.
    divisors: Ints
    #: Shape (U, number of divisors): whether a unit's stage may have that many replicas.
    allowed: Bools
    #: Shape (k, 2): units that must be in one stage.
    uncut: Ints
    #: The user's further rules for the stages.
    rules: StageRules

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.node_of)

    def sizes(self) -> range:
        """Return the possible numbers of stages, without rules for single stages."""
        most = self.problem.placement_rules.max_stages or self.size
        return range(1, min(self.size, int(self.count.sum()), self.most_replicas, most) + 1)

    def why_no_size(self) -> str | None:
        """Return one line on the rules that exclude every number of stages; None if one is left."""
        reasons = [self.rules.why_not(size) for size in self.sizes()]
        return None if None in reasons or not reasons else reasons[-1]

    def choices(self, unit: int, t: int) -> range:
        """Return the configurations of a unit at degree number t."""
        at = t * self.size + unit
        return range(int(self.first[at]), int(self.first[at + 1]))

    def stage(
        self, units: Iterable[int], options: Iterable[int], replicas: int, t: int, k: int
    ) -> Stage:
        """Return a stage of units with their configurations, at degree number t on kind k."""
        pairs = sorted(
            (int(self.node_of[unit]), int(self.configuration[c]))
            for unit, c in zip(units, options, strict=True)
        )
        return Stage(
            nodes=tuple(v for v, _ in pairs),
            configuration=tuple(c for _, c in pairs),
            replicas=replicas,
            degree=int(self.degrees[t]),
            kind=int(self.kinds[k]),
        )

    def kappa(self, t: int, replicas: int) -> float:
        """Return κ: the time to synchronise a byte of weights, per replica and microbatch."""
        devices = replicas * int(self.degrees[t])
        in_server = devices <= (self.problem.server_devices or 0)
        across = self.server_bandwidth if in_server else self.bandwidth
        accumulated = replicas if self.problem.in_flight == "pipedream" else self.microbatches
        return 4 * (replicas - 1) / (accumulated * across)

    def in_flight(self, replicas: int, behind: int) -> int:
        """Return y for a stage with `replicas`, if later stages have `behind` replicas in all."""
        if self.problem.in_flight == "gpipe":
            return -(-self.microbatches // replicas)
        return -(-(behind + replicas) // replicas)


def state_staging(task: Task[PipelineJob]) -> Staging:
    """Return the arrays of a stream's task.

    Raises `InputError` if the workload has no configurations, microbatches or bandwidth are not
    known, a rule names a layer that does not exist or leaves it no configuration, or the cluster
    has no accelerator.
    """
    workload, problem = task.workload, task.problem
    layers = layers_of(workload)
    microbatches = problem.microbatches or layers.microbatches
    rounds = problem.in_flight == "pipedream"
    if microbatches is None:
        if not rounds:
            raise InputError(
                f"{workload.name}: microbatches in a batch are not known; say --microbatches"
            )
        microbatches = 1  # no batches: nothing depends on it
    second = 1 / TIME_UNITS.get(workload.time_unit, 1.0)  # in the workload's unit
    bandwidth = layers.bandwidth if problem.bandwidth is None else problem.bandwidth / second
    if bandwidth is None:
        raise InputError(f"{workload.name}: the bandwidth is not known; give one")
    kinds = [k for k, kind in enumerate(task.cluster.kinds) if kind.count and not kind.host]
    if not kinds:
        raise InputError("cluster: no accelerator; a training plan needs at least one")

    node_of = np.array(workload.order[::-1])
    unit_of = np.empty(workload.n, np.int64)
    unit_of[node_of] = np.arange(workload.n)
    keep = _allowed_configurations(workload, layers, problem)
    degrees = np.unique(layers.degree[keep])
    rank = np.searchsorted(degrees, layers.degree[keep])
    chosen = keep[np.lexsort((keep, unit_of[layers.node[keep]], rank))]
    place = np.searchsorted(degrees, layers.degree[chosen]) * workload.n
    place += unit_of[layers.node[chosen]]
    first = np.searchsorted(place, np.arange(len(degrees) * workload.n + 1))

    weight = layers.weight_bytes[chosen]
    state = STATE_PER_WEIGHT[problem.precision][problem.optimizer]
    a, b = layers.bytes_per_microbatch[chosen], layers.fixed_bytes[chosen] + state * weight
    if problem.in_flight == "pipedream":
        a = a + weight
        b = b - weight  # y versions of the weights in all, one of which b includes
    elif problem.in_flight == "2bw":
        b = b + weight
    sync = [sorted(layers.sync_bytes[c].items()) for c in chosen.tolist()]
    devices = sum(task.cluster.kinds[k].count for k in kinds)
    rules = stage_rules(
        workload, problem.placement_rules, unit_of, unit_of[workload.edges].reshape(-1, 2),
        coloured=False,
    )  # fmt: skip
    divisors, allowed = _allowed_replicas(workload, problem, microbatches, devices, node_of)
    return Staging(
        workload=workload,
        layers=layers,
        problem=problem,
        microbatches=microbatches,
        bandwidth=bandwidth,
        server_bandwidth=(problem.server_bandwidth or math.inf) / second,
        most_replicas=devices if rounds else microbatches,
        kinds=frozen(kinds, np.int64),
        count=frozen([task.cluster.kinds[k].count for k in kinds], np.int64),
        capacity=frozen(room_of([task.cluster.kinds[k].memory_bytes for k in kinds]), np.float64),
        slowdown=frozen([task.cluster.kinds[k].slowdown for k in kinds], np.float64),
        node_of=frozen(node_of, np.int64),
        unit_of=frozen(unit_of, np.int64),
        degrees=frozen(degrees, np.int64),
        first=frozen(first, np.int64),
        configuration=frozen(chosen, np.int64),
        time=frozen(layers.time[chosen], np.float64),
        weight=frozen(weight, np.float64),
        per_microbatch=frozen(a, np.float64),
        fixed=frozen(b, np.float64),
        edges=frozen(unit_of[workload.edges].reshape(-1, 2), np.int64),
        edge_time=frozen(2 * layers.edge_bytes / bandwidth, np.float64),
        sync_start=frozen(np.cumsum([0, *map(len, sync)]), np.int64),
        sync_edge=frozen([e for row in sync for e, _ in row], np.int64),
        sync_time=frozen([2 * size / bandwidth for row in sync for _, size in row], np.float64),
        divisors=divisors,
        allowed=allowed,
        uncut=np.concatenate((_uncut(workload, problem, unit_of), _joined(rules))),
        rules=rules,
    )


def _uncut(workload: Workload, problem: PipelineJob, unit_of: Ints) -> Ints:
    ends = [[workload.index[node] for node in pair] for pair in problem.uncut]
    return frozen(unit_of[np.array(ends, np.int64).reshape(-1, 2)], np.int64)


def _joined(rules: StageRules) -> Ints:
    """Return pairs of units that rules keep together; all such pairs follow by transitivity."""
    of: dict[int, list[int]] = {}
    for unit, group in zip(rules.unit_of.tolist(), rules.group_of.tolist(), strict=True):
        of.setdefault(group, []).append(unit)
    pairs = [(units[0], unit) for units in of.values() for unit in units[1:]]
    return frozen(np.array(pairs, np.int64).reshape(-1, 2), np.int64)


def _allowed_configurations(workload: Workload, layers: Layers, problem: PipelineJob) -> Ints:
    """Return the configurations that problem and rules allow, as positions in `layers`."""
    wanted = np.full(workload.n, problem.recomputation, dtype="U8")
    keep = np.ones(layers.size, np.bool_)
    if problem.degrees is not None:
        keep &= np.isin(layers.degree, problem.degrees)
    for rule in problem.rules:
        v = workload.index[rule.node]
        if rule.degrees is not None:
            keep &= (layers.node != v) | np.isin(layers.degree, rule.degrees)
        if rule.recomputation is not None:
            wanted[v] = rule.recomputation
    both: dict[tuple[int, int], set[bool]] = {}
    for v, t, again in zip(
        layers.node.tolist(), layers.degree.tolist(), layers.recomputes.tolist(), strict=True
    ):
        both.setdefault((v, t), set()).add(again)
    for c in range(layers.size):
        v = int(layers.node[c])
        if wanted[v] != "free" and len(both[v, int(layers.degree[c])]) > 1:
            keep[c] &= bool(layers.recomputes[c]) == (wanted[v] == "forced")
    for v in sorted(set(range(workload.n)) - set(layers.node[keep].tolist())):
        raise InputError(
            f"node {workload.ids[v]}: no configuration of it is allowed; "
            "allow more degrees or change its rule"
        )
    return np.flatnonzero(keep)


def _allowed_replicas(
    workload: Workload, problem: PipelineJob, microbatches: int, devices: int, node_of: Ints
) -> tuple[Ints, Bools]:
    """Return the possible numbers of replicas, and whether each unit's stage may have each."""
    divisors = [
        d
        for d in range(1, devices + 1)
        if (problem.in_flight == "pipedream" or microbatches % d == 0)
        and (problem.replicas is None or d in problem.replicas)
    ]
    if not divisors:
        raise InputError(
            f"replicas: none of {problem.replicas} divides "
            f"{show_count(microbatches, 'microbatch')} and is at most the number of devices, "
            f"{devices}; allow another number"
        )
    allowed = np.ones((workload.n, len(divisors)), np.bool_)
    for rule in problem.rules:
        if rule.replicas is not None:
            allowed[workload.index[rule.node]] &= np.isin(divisors, rule.replicas)
    return frozen(divisors, np.int64), frozen(allowed[node_of], np.bool_)
