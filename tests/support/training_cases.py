"""Random small training cases, and the best plan of one by trying every plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from stagecut import Cluster, DeviceKind, PipelineJob, PlacementRules, Workload
from stagecut.instances import LayerRule, Layers


def random_training_case(
    seed: int, *, max_nodes: int = 5, max_devices: int = 5, kinds: int = 1
) -> tuple[Workload, Cluster, PipelineJob]:
    """Return random layers, a cluster and a problem; the same for the same seed.

    Parameters
    ----------
    kinds
        Kinds of accelerators, of different count, memory and speed.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, max_nodes + 1))
    rank = rng.permutation(n)
    density = rng.choice([0.2, 0.5, 0.9])
    edges = [
        (u, v) for u in range(n) for v in range(n) if rank[u] < rank[v] and rng.random() < density
    ]
    edges.sort()
    whole = rng.random() < 0.5

    def draw(top: float) -> float:
        return float(rng.integers(0, int(top) + 1)) if whole else float(rng.random() * top)

    rows: list[tuple[int, int, bool, float, float, float, float, dict[int, float]]] = []
    for v in range(n):
        degrees = [1, *(t for t in (2, 4) if rng.random() < 0.5)]
        for t in degrees:
            time, weight, a, b = draw(9), draw(4), draw(6), draw(4)
            for c in range(int(rng.integers(1, 4))):
                again = c > 0
                at = [e for e, ends in enumerate(edges) if v in ends and rng.random() < 0.4]
                rows.append(
                    (
                        v,
                        t,
                        again,
                        (time + draw(4) * again) / t,
                        weight if rng.random() < 0.8 else draw(4),
                        a * (1 - 0.7 * again),
                        b + weight + draw(2) * again,
                        {e: draw(3) for e in at},
                    )
                )
    microbatches = int(rng.choice([1, 2, 3, 4, 6, 12]))
    layers = Layers(
        node=np.array([row[0] for row in rows]),
        degree=np.array([row[1] for row in rows]),
        label=tuple("recomp" if row[2] else "vanilla" for row in rows),
        recomputes=np.array([row[2] for row in rows]),
        time=np.array([row[3] for row in rows]),
        weight_bytes=np.array([row[4] for row in rows]),
        bytes_per_microbatch=np.array([row[5] for row in rows]),
        fixed_bytes=np.array([row[6] for row in rows]),
        edge_bytes=np.array([draw(4) for _ in edges]),
        sync_bytes=tuple(row[7] for row in rows),
        microbatches=microbatches,
        bandwidth=float(rng.choice([1.0, 4.0, 100.0])),
    )
    workload = Workload(
        name=f"layers {seed}",
        ids=tuple(range(20, 20 + n)),
        edges=np.array(edges).reshape(-1, 2),
        times={"accelerator": np.ones(n)},
        memory_bytes=np.ones(n),
        transfer=np.zeros(n),
        layers=layers,
    )
    need = (layers.bytes_per_microbatch + layers.fixed_bytes).max() * n
    memory = float(np.ceil(rng.choice([0.3, 0.6, 1.0, 2.0, 9.0]) * need))
    made = [DeviceKind("acc0", int(rng.integers(1, max_devices + 1)), memory)]
    made += [
        DeviceKind(
            f"acc{k}",
            int(rng.integers(1, max_devices)),
            memory * float(rng.choice([0.5, 2.0])),
            slowdown=float(rng.choice([0.5, 1.0, 2.0])),
        )
        for k in range(1, kinds)
    ]
    rng.random()  # keeps the cases that tests name by their seed
    return workload, Cluster(tuple(made)), _varied(rng, workload)


def _varied(rng: np.random.Generator, workload: Workload) -> PipelineJob:
    def maybe(chance: float) -> bool:
        return bool(rng.random() < chance)

    rules: tuple[LayerRule, ...] = ()
    if maybe(0.3):
        rules = (
            LayerRule(
                int(rng.choice(workload.ids)),
                degrees=(1, 2) if maybe(0.5) else None,
                replicas=(1, 2, 3) if maybe(0.5) else None,
                recomputation="off" if maybe(0.5) else None,
            ),
        )
    uncut: tuple[tuple[int | str, int | str], ...] = ()
    if maybe(0.2) and len(workload.edges):
        u, v = workload.edges[int(rng.integers(len(workload.edges)))].tolist()
        uncut = ((workload.ids[u], workload.ids[v]),)
    server = maybe(0.2)
    return PipelineJob(
        schedule="stream",
        degrees=(1,) if maybe(0.15) else None,
        replicas=(1,) if maybe(0.15) else None,
        recomputation=("free", "off", "forced")[int(rng.choice(3, p=[0.6, 0.2, 0.2]))],
        rules=rules,
        placement_rules=PlacementRules(max_stages=int(rng.integers(1, 4)) if maybe(0.25) else None),
        uncut=uncut,
        in_flight=("1f1b", "gpipe", "pipedream", "2bw")[int(rng.choice(4, p=[0.6, 0.1, 0.2, 0.1]))],
        optimizer=("as-given", "adam")[int(rng.choice(2))],
        precision=("fp32", "mixed")[int(rng.choice(2))],
        server_devices=2 if server else None,
        server_bandwidth=50.0 if server else None,
    )


def best_objective(workload: Workload, cluster: Cluster, problem: PipelineJob) -> float:
    """Return the least objective over all plans, `inf` if none keeps the rules."""
    return min((time for _, time in every_plan(workload, cluster, problem)), default=math.inf)


def every_plan(
    workload: Workload, cluster: Cluster, problem: PipelineJob
) -> Iterator[tuple[tuple[frozenset[int], ...], float]]:
    """Yield the stages of every plan, and its least objective; `inf` if a stage does not fit."""
    layers = workload.layers
    assert layers is not None
    batch = layers.microbatches
    assert batch is not None
    rounds = problem.in_flight == "pipedream"
    shapes = [
        (d, t, k)
        for k, kind in enumerate(cluster.kinds)
        for d in range(1, kind.count + 1)
        for t in (1, 2, 4)
        if d * t <= kind.count and (rounds or batch % d == 0)
    ]
    cache: dict[tuple[frozenset[int], int, int, int, int], float] = {}
    for stages in _cuts(workload):
        most = problem.placement_rules.max_stages
        if most is not None and len(stages) > most:
            continue
        if not _kept(workload, stages, problem.placement_rules):
            continue
        if any(_torn(workload, stages, pair) for pair in problem.uncut):
            continue
        for chosen in itertools.product(shapes, repeat=len(stages)):
            if any(
                sum(d * t for d, t, g in chosen if g == k) > kind.count
                for k, kind in enumerate(cluster.kinds)
            ):
                continue
            if not rounds and sum(d for d, _, _ in chosen) > batch:
                continue
            times = []
            behind = 0
            for stage, (d, t, k) in zip(reversed(stages), reversed(chosen), strict=True):
                behind += d
                key = (stage, d, t, behind, k)
                if key not in cache:
                    cache[key] = _best_stage(workload, problem, cluster.kinds[k], *key[:4])
                times.append(cache[key])
            yield stages, max(times)


def _cuts(workload: Workload) -> Iterator[tuple[frozenset[int], ...]]:
    """Yield every way to cut the nodes into stages with all edges leading forward."""

    def go(left: frozenset[int]) -> Iterator[tuple[frozenset[int], ...]]:
        if not left:
            yield ()
        for size in range(1, len(left) + 1):
            for picked in itertools.combinations(sorted(left), size):
                after = left - set(picked)
                if all(not (u in after and v in picked) for u, v in workload.edges.tolist()):
                    for rest in go(after):
                        yield (frozenset(picked), *rest)

    return go(frozenset(range(workload.n)))


def _torn(workload: Workload, stages: tuple[frozenset[int], ...], pair: tuple[object, ...]) -> bool:
    u, v = (workload.ids.index(node) for node in pair)  # type: ignore[arg-type]
    return not any(u in stage and v in stage for stage in stages)


def _best_stage(
    workload: Workload,
    problem: PipelineJob,
    kind: DeviceKind,
    stage: frozenset[int],
    d: int,
    t: int,
    behind: int,
) -> float:
    """Return the least time of a stage over all configurations that fit, `inf` without any."""
    layers = workload.layers
    assert layers is not None
    assert layers.microbatches is not None
    assert layers.bandwidth is not None
    choices = []
    for v in sorted(stage):
        rule = next((r for r in problem.rules if workload.ids.index(r.node) == v), None)
        for what, value in (("degrees", t), ("replicas", d)):
            for source in (problem, rule):
                allowed = getattr(source, what, None)
                if allowed is not None and value not in allowed:
                    return math.inf
        mine = [c for c in range(layers.size) if layers.node[c] == v and layers.degree[c] == t]
        wanted = (rule and rule.recomputation) or problem.recomputation
        if wanted != "free" and len({bool(layers.recomputes[c]) for c in mine}) == 2:
            mine = [c for c in mine if bool(layers.recomputes[c]) == (wanted == "forced")]
        choices.append(mine)
    cut = [e for e, (u, v) in enumerate(workload.edges.tolist()) if (u in stage) != (v in stage)]
    y = -(-behind // d) if problem.in_flight != "gpipe" else layers.microbatches // d
    versions = {"pipedream": y - 1, "2bw": 1}.get(problem.in_flight, 0)
    state = 0 if problem.optimizer == "as-given" else (2 if problem.precision == "fp32" else 6)
    across = layers.bandwidth
    if problem.server_devices is not None and d * t <= problem.server_devices:
        assert problem.server_bandwidth is not None
        across = problem.server_bandwidth
    best = math.inf
    for chosen in itertools.product(*choices):
        weight = sum(layers.weight_bytes[c] for c in chosen)
        used = (versions + state) * weight + sum(
            layers.bytes_per_microbatch[c] * y + layers.fixed_bytes[c] for c in chosen
        )
        if used > kind.memory_bytes:
            continue
        moved = 2 * sum(layers.edge_bytes[e] for e in cut) + 2 * sum(
            layers.sync_bytes[c].get(e, 0.0) for c in chosen for e in cut
        )
        time = (
            sum(layers.time[c] for c in chosen) * kind.slowdown / d + moved / d / layers.bandwidth
        )
        accumulated = d if problem.in_flight == "pipedream" else layers.microbatches
        time += 4 * (d - 1) * weight / (d * accumulated * across)
        best = min(best, float(time))
    return best


def _kept(workload: Workload, stages: tuple[frozenset[int], ...], rules: PlacementRules) -> bool:
    """Whether stages keep rules whose patterns are ids."""
    of = {str(workload.ids[v]): s for s, nodes in enumerate(stages) for v in nodes}
    return (
        all(of[node] == number % len(stages) for node, number in rules.pins)
        and all(-len(stages) <= number < len(stages) for _, number in rules.pins)
        and all(len({of[node] for node in nodes}) == 1 for nodes in rules.together)
        and all(len({of[node] for node in nodes}) == len(nodes) for nodes in rules.apart)
    )
