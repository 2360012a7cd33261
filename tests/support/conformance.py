"""Small tasks of every problem for the conformance suite: the same nodes, asked four questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagecut import (
    Cluster,
    DeviceKind,
    Latency,
    PipelineJob,
    Plan,
    Throughput,
    Workload,
    accelerators_and_cpus,
)
from stagecut.instances import (
    CallPlacement,
    DeviceMapping,
    DeviceMesh,
    Layers,
    Link,
    Operator,
    PipelinePlacement,
    Placement,
    Problem,
    ReplicaPlacement,
    Sharding,
    Signature,
    StagePlacement,
    Tensor,
    TensorProgram,
    TensorSharding,
    program_workload,
    topology,
)
from stagecut.solvers import METHODS

Edges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Task:
    """What `solve` is asked."""

    workload: Workload
    cluster: Cluster
    problem: Problem


def chain(seconds: Sequence[float], /, **changes: object) -> Workload:
    """A chain of nodes that take so long, ten times that on a CPU, and move in 0.1."""
    n = len(seconds)
    fields: dict[str, object] = {
        "name": "a chain",
        "ids": tuple(f"node {v}" for v in range(n)),
        "edges": np.array([(v, v + 1) for v in range(n - 1)]).reshape(-1, 2),
        "times": {"accelerator": np.array(seconds), "cpu": 10 * np.array(seconds)},
        "memory_bytes": np.ones(n),
        "transfer": np.full(n, 0.1),
    }
    return Workload(**(fields | changes))  # type: ignore[arg-type]


def _placed(
    problem: Problem, seconds: Sequence[float], edges: Edges, scale: float, room: float
) -> Task:
    workload = chain(
        list(scale * np.array(seconds)),
        edges=np.array(edges).reshape(-1, 2),
        transfer=np.full(len(seconds), 0.1 * scale * any(seconds)),
    )
    cpus = 1 if room == np.inf else 0
    return Task(workload, accelerators_and_cpus(2, cpus, room), problem)


def _iterated(seconds: Sequence[float], edges: Edges, scale: float, room: float) -> Task:
    """A forward and a backward pass, of modules that are numbered."""
    n, pairs = len(seconds), np.array(edges).reshape(-1, 2)
    own = np.stack((np.arange(n), np.arange(n) + n), axis=1)
    both = np.tile(scale * np.array(seconds), 2)
    workload = chain(
        list(both),
        edges=np.concatenate((pairs, own, pairs[:, ::-1] + n)).reshape(-1, 2),
        transfer=0.1 * both,
        backward=np.arange(2 * n) >= n,
        names=tuple(f"layers.{v}.mlp{side}" for side in ("", ".backward") for v in range(n)),
    )
    return Task(workload, accelerators_and_cpus(2, memory_bytes=room), PipelineJob(4, "1f1b"))


def _trained(seconds: Sequence[float], edges: Edges, scale: float, room: float) -> Task:
    n = len(seconds)
    layers = Layers(
        node=np.arange(n),
        degree=np.ones(n, np.int64),
        label=("vanilla",) * n,
        recomputes=np.zeros(n, np.bool_),
        time=scale * np.array(seconds),
        weight_bytes=np.full(n, 0.1) * any(seconds),
        bytes_per_microbatch=np.ones(n),
        fixed_bytes=np.ones(n),
        edge_bytes=np.full(len(edges), 0.1) * any(seconds),
        sync_bytes=({},) * n,
        microbatches=4,
        bandwidth=1 / scale,
    )
    workload = chain(
        list(scale * np.array(seconds)), edges=np.array(edges).reshape(-1, 2), layers=layers
    )
    problem = PipelineJob(schedule="stream")
    return Task(workload, Cluster((DeviceKind("accelerator", 2, room),)), problem)


def _mapped(seconds: Sequence[float], edges: Edges, scale: float, room: float) -> Task:
    n = len(seconds)
    some = float(any(seconds))
    workload = chain(
        list(scale * np.array(seconds)),
        edges=np.array(edges).reshape(-1, 2),
        transfer=None,
        output_bytes=np.full(n, 1e8) * some,
        time_unit="s",
        extra={"weight_bytes": np.full(n, 1e8) * some},
    )
    ring = topology("islands:2x2")
    place = replace(ring, latency_s=ring.latency_s * scale, bytes_per_s=ring.bytes_per_s / scale)
    problem = DeviceMapping(place, min(2, n), 2, "both", collective="ring")
    return Task(workload, accelerators_and_cpus(4, memory_bytes=room), problem)


def _sharded(seconds: Sequence[float], edges: Edges, scale: float, room: float) -> Task:
    """Operators with a parameter each, which share work if there are several."""
    n, some = len(seconds), float(any(seconds))
    tensors = [Tensor(f"t{v}", (4, int(some))) for v in range(2 * n)]
    hows = (("S0", 4), ("B", 1))[n == 1 :]  # what cannot be split costs the same by all methods
    lies = tuple(Signature.of(f"->{how}", extent) for how, extent in hows)
    operators = [Operator(f"w{v}", (), (v,), lies, "parameter") for v in range(n)]
    for v, time in enumerate(seconds):
        reads = (v, *(n + a for a, b in edges if b == v))
        ways = tuple(
            Signature.of(f"{','.join([how] * len(reads))}->{how}", extent) for how, extent in hows
        )
        part = {"compute" if n > 1 else "fixed": scale * time}
        operators.append(Operator(f"v{v}", reads, (n + v,), ways, **part))  # type: ignore[arg-type]
    workload = program_workload(
        TensorProgram(tuple(tensors), tuple(operators)), "a chain", time_unit="s"
    )
    mesh = DeviceMesh((2,), (Link(0.1 * scale * some, 1e3 / scale),))
    memory = None if room == np.inf else room
    return Task(workload, accelerators_and_cpus(2), Sharding(mesh, memory_bytes=memory))


#: Methods that search until they have proved something, unless a limit ends them; of throughput
#: `dp` for contiguous splits alone.
EXACT = {
    "throughput": ("auto", "milp"),
    **dict.fromkeys(("pipeline", "iteration", "stream"), ("auto", "dp", "milp")),
    "latency": ("auto", "dp", "milp", "milp-big-m"),
    "mapping": ("auto", "milp", "joint"),
    "sharding": ("auto", "elimination", "messages", "milp", "milp-compact"),
}

#: Problem, of jobs the kind → task of nodes that take so long, joined by edges; all costs are
#: `scale` times as large, and devices have `room` for so many bytes, of which each node takes one
#: or more.
TASKS: dict[str, Callable[[Sequence[float], Edges, float, float], Task]] = {
    "throughput": lambda *of: _placed(Throughput(), *of),
    "iteration": _iterated,
    "latency": lambda *of: _placed(Latency(), *of),
    "stream": _trained,
    "mapping": _mapped,
    "sharding": _sharded,
}


#: Methods of jobs that know streams alone.
OF_STREAMS = ("piper", "equal-stages", "data-parallel", "pipedream")

#: Problem, of jobs the kind → its methods.
METHODS_OF = {
    **{problem: list(methods) for problem, methods in METHODS.items() if problem != "pipeline"},
    "iteration": [name for name in METHODS["pipeline"] if name not in OF_STREAMS],
    "stream": [*EXACT["stream"], *OF_STREAMS],
}


def task(
    problem: str,
    seconds: Sequence[float] = (1.0, 2.0, 3.0, 2.0, 1.0, 4.0),
    edges: Edges | None = None,
    *,
    scale: float = 1.0,
    room: float = np.inf,
) -> Task:
    """Return the task of a problem; by default a chain of nodes."""
    line = [(v, v + 1) for v in range(len(seconds) - 1)]
    return TASKS[problem](seconds, line if edges is None else edges, scale, room)


def torn(plan: Plan) -> Plan:
    """Return the plan with a rule broken: all on the first device, or all that it does twice."""
    match plan.solution:
        case Placement(device=device):
            return replace(plan, solution=Placement(0 * device))
        case PipelinePlacement(stage=stage, devices=devices):
            return replace(plan, solution=PipelinePlacement(stage, devices * 2))
        case CallPlacement(device=device, call=call):
            return replace(plan, solution=CallPlacement(0 * device, 0 * call))
        case StagePlacement(stages=stages):
            return replace(plan, solution=StagePlacement((*stages, *stages), plan.solution.device))
        case ReplicaPlacement(stage=stage, slots=slots, sends_to=sends_to):
            return replace(plan, solution=ReplicaPlacement(stage, slots * 0, sends_to))
        case TensorSharding(signature=signature):
            return replace(plan, solution=TensorSharding(signature + 100))
    raise AssertionError
