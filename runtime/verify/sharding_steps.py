"""Steps by which a tensor comes to lie otherwise on a mesh, and cheapest paths of them.

Written apart from the models and the search on purpose: it is what they are judged by.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...instances import Sharding, Tensor

#: How a tensor lies: a text such as ``S0`` for each axis of the mesh.
Lying = tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One step of a conversion.

    Parameters
    ----------
    collective
        ``all-gather``, ``reduce-scatter``, ``all-reduce`` or ``all-to-all``; ``slice``, ``pad`` or
        ``keep-one`` where nothing is sent.
    axis
        Of the mesh, along which it runs.
    after
        How the tensor lies then.
    bytes
        That all devices send.
    seconds
        By latency and bandwidth of the axis.
    """

    collective: str
    axis: int
    after: Lying
    bytes: float
    seconds: float


def part_of(tensor: Tensor, how: Lying, mesh: Sequence[int]) -> list[int] | None:
    """Return the shape of what a device has, None if an axis does not divide."""
    shape = list(tensor.shape)
    for one, p in zip(how, mesh, strict=True):
        if one.startswith("S"):
            axis = int(one[1:])
            if axis >= len(shape) or shape[axis] % p:
                return None
            shape[axis] //= p
    return shape


def local_bytes(tensor: Tensor, how: Lying, mesh: Sequence[int]) -> float:
    part = part_of(tensor, how, mesh)
    assert part is not None
    return math.prod(part) * tensor.size_bytes / max(tensor.elements, 1)


def path(tensor: Tensor, before: Lying, after: Lying, problem: Sharding) -> tuple[Step, ...]:
    """Return the cheapest steps from one way of lying to another."""
    for _, here, steps in paths(tensor, before, problem):
        if here == after:
            return steps
    raise AssertionError((before, after))


def paths(
    tensor: Tensor, before: Lying, problem: Sharding
) -> Iterator[tuple[float, Lying, tuple[Step, ...]]]:
    """Yield all ways of lying with their cost and cheapest steps, nearest first, by Dijkstra."""
    by_time = problem.objective == "time"
    queue: list[tuple[float, int, Lying, tuple[Step, ...]]] = [(0.0, 0, before, ())]
    settled: set[Lying] = set()
    count = 0
    while queue:
        cost, _, here, steps = heapq.heappop(queue)
        if here in settled:
            continue
        yield cost, here, steps
        settled.add(here)
        for step in _steps(tensor, here, problem):
            if step.after not in settled:
                count += 1
                further = cost + (step.seconds if by_time else step.bytes)
                heapq.heappush(queue, (further, count, step.after, (*steps, step)))


def _steps(tensor: Tensor, here: Lying, problem: Sharding) -> Iterator[Step]:
    mesh = problem.mesh.shape
    for d, before in enumerate(here):
        for one in ("B", "P", *(f"S{axis}" for axis in range(len(tensor.shape)))):
            after = (*here[:d], one, *here[d + 1 :])
            split_later = {how for how in here[d + 1 :] if how.startswith("S")}
            if one == before or split_later & {before, one}:
                continue
            if part_of(tensor, after, mesh) is None:
                continue
            others = [p for e, p in enumerate(mesh) if e != d and here[e].startswith("S")]
            among = tensor.size_bytes / math.prod(others)
            yield one_step(before, one, d, among, problem, after)


def one_step(
    before: str, after: str, d: int, among: float, problem: Sharding, lying: Lying
) -> Step:
    """Return a step along axis d on tensors of so many bytes in each group of devices."""
    mesh, link = problem.mesh, problem.mesh.links[d]
    p = mesh.shape[d]
    if before == "B":
        return Step("keep-one" if after == "P" else "slice", d, lying, 0.0, 0.0)
    if after == "P":
        return Step("pad", d, lying, 0.0, 0.0)
    if before == "P":
        name = "all-reduce" if after == "B" else "reduce-scatter"
        rounds = (2 if after == "B" else 1) * (p - 1)
        sent = rounds * among
    elif after == "B":
        name, rounds, sent = "all-gather", p - 1, (p - 1) * among
    else:
        name, rounds, sent = "all-to-all", p - 1, (p - 1) * among / p
    groups = mesh.size // p
    seconds = rounds * link.latency_s + sent / p / link.bytes_per_s
    return Step(name, d, lying, groups * sent, seconds)
