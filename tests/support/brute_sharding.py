"""Random tensor programs, and the least cost of a sharding by trying everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from brute import most_bytes

from stagecut import DeviceMesh, Link, Sharding, Workload
from stagecut.instances import Operator, Signature, Tensor, TensorProgram, program_workload
from stagecut.instances.common.choices import Primitive
from stagecut.runtime.verify.sharding import path

#: Combinations that are tried, at most.
MAX_WAYS = 30_000

MESHES = ((2,), (3,), (4,), (2, 2), (2, 3))


def random_program(rng: np.random.Generator, most: int = 6, views: float = 0.2) -> Workload:
    """Return a program of a few operators with signatures at random; some of it is backward.

    Parameters
    ----------
    most
        Operators.
    views
        How probable it is that one only looks at what it reads.
    """
    tensors: list[Tensor] = []
    operators: list[Operator] = []
    count = int(rng.integers(2, most + 1))
    sources = int(rng.integers(1, min(3, count) + 1))
    backward_from = int(rng.integers(sources, count + 1))
    for v in range(count):
        makes = [len(tensors)]
        reads: list[int] = []
        if v < sources:
            tensors.append(_tensor(rng, f"t{len(tensors)}"))
            role = "input" if rng.random() < 0.4 else "parameter"
            axes = (0,) if role == "input" else range(len(tensors[-1].shape))
            shape = tensors[-1].shape
            ways = [Signature((), (axis,), shape[axis]) for axis in axes if rng.random() < 0.8]
            ways.append(Signature((), (-1,)))
            operators.append(Operator(f"v{v}", (), tuple(makes), tuple(ways), role))  # type: ignore[arg-type]
            tensors[-1] = Tensor(f"t{len(tensors) - 1}", shape)
            continue
        reads = rng.integers(0, len(tensors), int(rng.integers(1, 3))).tolist()
        view = bool(rng.random() < views)
        for _ in range(1 + int(rng.random() < 0.2 and not view)):
            tensors.append(_tensor(rng, f"t{len(tensors)}"))
        makes = list(range(makes[0], len(tensors)))
        around = [tensors[t] for t in (*reads, *makes)]
        ways = _signatures(rng, around, len(reads))
        operators.append(
            Operator(
                f"v{v}", tuple(reads), tuple(makes), ways,
                fixed=float(rng.integers(0, 3)), compute=float(rng.integers(0, 40)),
                memory=float(rng.integers(0, 30)), backward=v >= backward_from, view=view,
            )
        )  # fmt: skip
    for v, operator in enumerate(operators):
        if operator.role == "parameter" and rng.random() < 0.7:
            same = [
                t
                for later in operators[backward_from:]
                for t in later.outputs
                if tensors[t].shape == tensors[operator.outputs[0]].shape
            ]
            if same:
                arrives = int(rng.choice(same))
                operators[v] = Operator(
                    operator.name, (), operator.outputs, operator.signatures, "parameter",  # type: ignore[arg-type]
                    gradient=arrives,
                )  # fmt: skip
    program = TensorProgram(tuple(tensors), tuple(operators))
    return program_workload(program, "random", time_unit="s")


def random_towers(rng: np.random.Generator, ways: int = 5) -> Workload:
    """Return a program of two or three parts beside each other, with a parameter each, that meet.

    The parameters are ``tower0.weight``, ``tower1.weight``, …; `ways` are the signatures of an
    operator, at most, beside the copied one.
    """
    tensors: list[Tensor] = []
    operators: list[Operator] = []

    def add(name: str, reads: list[int], shape: tuple[int, ...] | None = None) -> int:
        made = len(tensors)
        tensors.append(_tensor(rng, f"t{made}"))
        if shape is not None:
            tensors[-1] = Tensor(f"t{made}", shape)
        around = [tensors[t] for t in (*reads, made)]
        times = rng.integers(0, (3, 40, 30)).astype(float).tolist()
        backward = name.startswith("back")
        signatures = _signatures(rng, around, len(reads), ways)
        operators.append(
            Operator(name, tuple(reads), (made,), signatures, fixed=times[0], compute=times[1],
                     memory=times[2], backward=backward)
        )  # fmt: skip
        return made

    count = int(rng.integers(2, 4))
    for j in range(count):
        tensors.append(_tensor(rng, f"t{j}"))
        either = (Signature((), (0,), tensors[j].shape[0]), Signature((), (-1,)))
        operators.append(Operator(f"tower{j}.weight", (), (j,), either, "parameter"))  # type: ignore[arg-type]
    ends = []
    for j in range(count):
        ends.append(add(f"forward{j}", [j]))
        if rng.random() < 0.4:
            ends[j] = add(f"further{j}", [ends[j], j])
    meets = add("meet", ends)
    for j in range(count):
        reads = [meets] if rng.random() < 0.5 else [meets, ends[j]]
        gradient = add(f"back{j}", reads, tensors[j].shape)
        weight = operators[j]
        operators[j] = Operator(
            weight.name,
            (),
            (j,),
            weight.signatures,
            "parameter",
            gradient=gradient,  # type: ignore[arg-type]
        )
    return program_workload(
        TensorProgram(tuple(tensors), tuple(operators)), "towers", time_unit="s"
    )


def _tensor(rng: np.random.Generator, name: str) -> Tensor:
    return Tensor(name, tuple(rng.choice([4, 6, 12], int(rng.integers(1, 3))).tolist()))


def _signatures(
    rng: np.random.Generator, around: list[Tensor], reads: int, most: int = 5
) -> tuple[Signature, ...]:
    found: dict[str, Signature] = {}
    for _ in range(int(rng.integers(1, most + 1))):
        one = [int(rng.integers(-2, len(tensor.shape))) for tensor in around]
        split = any(axis >= 0 for axis in one)
        extent = int(rng.choice([4, 6, 12])) if split else 1
        reduced = 48.0 if rng.random() < 0.15 else 0.0
        signature = Signature(tuple(one[:reads]), tuple(one[reads:]), extent, reduced)
        found.setdefault(signature.text, signature)
    copied = Signature((-1,) * reads, (-1,) * (len(around) - reads))
    found.setdefault(copied.text, copied)
    return tuple(found.values())


def random_problem(rng: np.random.Generator, mesh: tuple[int, ...] | None = None) -> Sharding:
    """Return a problem on a small mesh, of either objective."""
    shape = mesh or MESHES[int(rng.integers(len(MESHES)))]
    links = tuple(Link(float(rng.choice([0.0, 0.5])), float(rng.choice([8, 50]))) for _ in shape)
    objective = "distpar" if rng.random() < 0.4 else "time"
    beta = float(rng.choice([0.0, 0.3, 2.0]))
    return Sharding(DeviceMesh(shape, links), objective, beta if objective == "distpar" else 1.0)


#: How tensors of an operator lie: of each a property along each axis of the mesh.
Lies = list[tuple[str, ...]]

#: How an operator reads, what it makes, and its own cost.
Way = tuple[Lies, Lies, float]

#: Of a sharding: how every operator's outputs lie, the cost, and whether it fits.
Tried = tuple[list[Lies], float, Callable[[], bool]]


def least_cost(workload: Workload, problem: Sharding) -> float | None:
    """Return the least cost of a sharding, `inf` if none fits; None if there are too many."""
    tried = every_sharding(workload, problem)
    if tried is None:
        return None
    best = math.inf
    for _, cost, fits in tried:
        if cost < best and fits():
            best = cost
    return best


def every_sharding(workload: Workload, problem: Sharding) -> Iterator[Tried] | None:
    """Return all shardings; None if there are too many."""
    program = workload.program
    assert program is not None
    ways = [list(_ways(program, operator, problem)) for operator in program.operators]
    if math.prod(map(len, ways)) > MAX_WAYS:
        return None
    return _costs_of(program, problem, ways)


def _costs_of(program: TensorProgram, problem: Sharding, ways: list[list[Way]]) -> Iterator[Tried]:
    known: dict[tuple[int, tuple[str, ...], tuple[str, ...]], float] = {}

    def convert(t: int, before: tuple[str, ...], after: tuple[str, ...]) -> float:
        key = (t, before, after)
        if key not in known:
            steps = path(program.tensors[t], before, after, problem)
            by_time = problem.objective == "time"
            known[key] = math.fsum(s.seconds if by_time else s.bytes for s in steps)
        return known[key]

    for combination in itertools.product(*ways):
        made = {
            t: how
            for operator, (_, how_made, _) in zip(program.operators, combination, strict=True)
            for t, how in zip(operator.outputs, how_made, strict=True)
        }
        wanted = {
            (t, how)
            for operator, (how_read, _, _) in zip(program.operators, combination, strict=True)
            for t, how in zip(operator.inputs, how_read, strict=True)
        }
        wanted |= {
            (operator.gradient, made[operator.outputs[0]])
            for operator in program.operators
            if operator.gradient is not None
        }
        cost = sum(own for _, _, own in combination)
        cost += sum(convert(t, made[t], how) for t, how in sorted(wanted) if made[t] != how)
        fits = partial(_fits, program, problem, combination, made)
        yield [lies for _, lies, _ in combination], cost, fits


def _ways(program: TensorProgram, operator: Operator, problem: Sharding) -> Iterator[Way]:
    mesh = problem.mesh.shape
    for row in itertools.product(operator.signatures, repeat=len(mesh)):
        pieces = [
            math.prod(p for other, p in zip(row, mesh, strict=True) if other is one) for one in row
        ]
        if any(s.extent > 1 and s.extent % n for s, n in zip(row, pieces, strict=True)):
            continue
        sides = [[s.text.split("->")[k].split(",") for s in row] for k in (0, 1)]
        read = [tuple(c) for c in zip(*sides[0], strict=True)] if operator.inputs else []
        made = [tuple(c) for c in zip(*sides[1], strict=True)]
        tensors = [program.tensors[t] for t in (*operator.inputs, *operator.outputs)]
        parts = [_part(t, how, mesh) for t, how in zip(tensors, read + made, strict=True)]
        if None in parts:
            continue
        if operator.role == "input" and made[0] != _arrival(operator, tensors[0], mesh):
            continue
        yield read, made, _own(operator, row, tensors, [p for p in parts if p is not None], problem)


def _part(tensor: Tensor, how: tuple[str, ...], mesh: tuple[int, ...]) -> int | None:
    extents = [float(e) for e in tensor.shape]
    for one, p in zip(how, mesh, strict=True):
        if one[0] == "S":
            extents[int(one[1:])] /= p
    return None if any(e % 1 for e in extents) else round(math.prod(extents))


def _arrival(operator: Operator, tensor: Tensor, mesh: tuple[int, ...]) -> tuple[str, ...]:
    how: list[str] = []
    for p in mesh:
        split = (*how, "S0")
        fits = _part(tensor, (*split, *("B",) * (len(mesh) - len(split))), mesh) is not None
        can = any(s.text == "->S0" for s in operator.signatures)
        how.append("S0" if fits and can and p else "B")
    return tuple(how)


def _own(
    operator: Operator,
    row: tuple[Signature, ...],
    tensors: list[Tensor],
    parts: list[int],
    problem: Sharding,
) -> float:
    mesh = problem.mesh
    added = 0.0
    for d, one in enumerate(row):
        size = one.reduced_bytes
        for e, other in enumerate(row):
            if size and e != d and other is not one and other.extent > 1:
                size /= mesh.shape[e]
        size = max(size, min(one.reduced_bytes, 4.0))
        p = mesh.shape[d]
        if size and problem.objective == "distpar":
            added += 2 * (p - 1) * size * mesh.size / p
        elif size:
            reduced = mesh.priced(Primitive.ALL_REDUCE, d)
            if reduced.algorithm == "tree":
                doublings = (p - 1).bit_length()
                added += 2 * doublings * reduced.link.latency_s
                added += 2 * size / reduced.link.bytes_per_s
            else:
                added += 2 * (p - 1) * reduced.link.seconds(size / p)
    if problem.objective == "distpar":
        return added + (problem.beta * sum(parts) if operator.role == "operator" else 0.0)
    divided = math.prod(p for s, p in zip(row, mesh.shape, strict=True) if s.extent > 1)
    moved = sum(4 * part for part in parts) / sum(t.size_bytes for t in tensors)
    return operator.fixed + max(operator.compute / divided, operator.memory * moved) + added


def _fits(
    program: TensorProgram,
    problem: Sharding,
    combination: tuple[Way, ...],
    made: dict[int, tuple[str, ...]],
) -> bool:
    if problem.memory_bytes is None:
        return True
    mesh, total = problem.mesh.shape, 0.0
    for operator in program.operators:
        if operator.role == "parameter":
            t = operator.outputs[0]
            times = 1.0 if operator.gradient is None else 2.0 + problem.state
            total += times * 4 * (_part(program.tensors[t], made[t], mesh) or 0)
    held: set[tuple[int, tuple[str, ...]]] = set()

    def hold(t: int, how: tuple[str, ...]) -> None:
        v = program.maker[t]
        maker = program.operators[v]
        if how == made[t] and maker.view:
            hold(maker.inputs[0], combination[v][0][0])
        elif how != made[t] or maker.role != "parameter":
            held.add((t, how))

    for operator, (how_read, _, _) in zip(program.operators, combination, strict=True):
        for t, how in zip(operator.inputs, how_read, strict=True):
            if operator.backward and not program.operators[program.maker[t]].backward:
                hold(t, how)
    total += sum(4 * (_part(program.tensors[t], how, mesh) or 0) for t, how in held)
    return total <= most_bytes(problem.memory_bytes)


def cases(first: int, count: int, *, stream: int) -> list[tuple[Workload, Sharding, float]]:
    """Return random programs and problems with their optimum; a stream has seeds of its own."""
    found = []
    for seed in range(first, first + count):
        rng = np.random.default_rng([seed, stream])
        workload, problem = random_program(rng), random_problem(rng)
        optimum = least_cost(workload, problem)
        if optimum is not None:
            found.append((workload, problem, optimum))
    return found
