"""Small random cases whose numbers span many orders of magnitude, as users write them for "never".

Some numbers are BIG, the others around 1, or everything is scaled by one factor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from stagecut import Cluster, DeviceKind, Workload
from stagecut.instances import program_workload
from stagecut.instances.common.arrays import Floats

#: Powers of ten that BIG is, from times that nobody pays to what users write for "never".
POWERS = (3, 17)

Where = Literal["transfers", "compute", "cpu", "memory", "all"]


def wide_case(seed: int, big: float, where: Where, scale: float = 1.0) -> tuple[Workload, Cluster]:
    """Return a random graph of 5 to 9 nodes and 2 or 3 accelerators; the same for the same seed.

    Two pairs of nodes share a colour. The memory of all devices is 1.05 to 1.5 times what all
    nodes take: tight.

    Parameters
    ----------
    big
        Takes the place of about a third of the numbers in `where`.
    where
        ``cpu`` (times on a CPU core) and ``all`` come with one core.
    scale
        Of all times.
    """
    rng = np.random.default_rng([seed, 2])
    n = int(rng.integers(5, 10))
    devices = int(rng.integers(2, 4))
    density = rng.choice([0.2, 0.4])
    edges = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < density]
    colours = np.full(n, -1)
    pairs = rng.permutation(n)[:4]
    colours[pairs[:2]], colours[pairs[2:]] = 0, 1

    def drawn(numbers: Floats, *here: Where) -> Floats:
        large = rng.random(n) < 0.35
        return np.where(large, big, numbers) if where in (*here, "all") else numbers

    compute = drawn(rng.random(n) + 0.1, "compute")
    transfer = drawn(rng.random(n) * 0.3, "transfers")
    cpu = drawn(compute * 3, "cpu")
    memory = drawn(rng.integers(1, 5, n).astype(float), "memory")
    room = np.floor(rng.uniform(1.05, 1.5) * memory.sum() / devices)
    workload = Workload(
        name=f"wide {seed}",
        ids=tuple(range(n)),
        edges=np.array(edges).reshape(-1, 2),
        times={"accelerator": compute * scale, "cpu": cpu * scale},
        memory_bytes=memory,
        transfer=transfer * scale,
        colours=colours,
    )
    core = DeviceKind("cpu", int(where in ("cpu", "all")), host=True)
    return workload, Cluster((DeviceKind("accelerator", devices, float(room)), core))


#: What becomes of a column of numbers.
Change = Callable[[Floats], Floats]


def widened(
    workload: Workload, rng: np.random.Generator, powers: tuple[int, int] = (4, 12)
) -> Workload:
    """Return the workload with some of its times, sizes and layers' numbers replaced by BIG ones.

    Parameters
    ----------
    powers
        BIG is ten to the power of one of them or between, times the largest number; the same
        throughout.
    """
    big = float(10.0 ** rng.integers(powers[0], powers[1] + 1))

    def drawn(numbers: Floats) -> Floats:
        if rng.random() < 0.5:
            return numbers
        return np.where(rng.random(len(numbers)) < 0.35, big * _top(numbers), numbers)

    return _changed(workload, drawn)


def seldom_wide(workload: Workload, rng: np.random.Generator) -> Workload:
    """Return the workload with BIG numbers of 1e3 to 1e17, in half of the cases a single one.

    A plan that does not pay for it is then often the best, and sums over the whole graph are far
    above what that pays.
    """
    if rng.random() < 0.5:
        return widened(workload, rng, POWERS)
    columns: list[Floats] = []
    _changed(workload, lambda numbers: columns.append(numbers) or numbers)
    chosen = columns[int(rng.integers(len(columns)))] if columns else None
    big = float(10.0 ** rng.integers(POWERS[0], POWERS[1] + 1))

    def one(numbers: Floats) -> Floats:
        if numbers is not chosen:
            return numbers
        return np.where(
            np.arange(len(numbers)) == rng.integers(len(numbers)), big * _top(numbers), numbers
        )

    return _changed(workload, one)


def _top(numbers: Floats) -> float:
    return float(numbers[np.isfinite(numbers)].max(initial=0.0)) or 1.0


def _changed(workload: Workload, change: Change) -> Workload:
    """Return the workload with other numbers in the columns that it has."""

    def of(numbers: Floats | None) -> Floats | None:
        return numbers if numbers is None or not len(numbers) else change(numbers)

    layers = workload.layers
    if layers is not None:
        columns = ("time", "weight_bytes", "bytes_per_microbatch", "fixed_bytes", "edge_bytes")
        layers = replace(layers, **{name: of(getattr(layers, name)) for name in columns})
    return replace(
        workload,
        times={kind: of(times) for kind, times in workload.times.items()},
        transfer=of(workload.transfer),
        output_bytes=of(workload.output_bytes),
        extra={name: of(numbers) for name, numbers in workload.extra.items()},
        layers=layers,
    )


def widened_program(workload: Workload, rng: np.random.Generator) -> Workload:
    """Return a tensor program with some of its operators' times 1e3 to 1e17 times as long."""
    assert workload.program is not None
    big = float(10.0 ** rng.integers(POWERS[0], POWERS[1] + 1))
    parts = ("fixed", "compute", "memory")
    operators = tuple(
        replace(
            operator,
            **{name: big * getattr(operator, name) for name in parts if rng.random() < 0.2},
        )
        for operator in workload.program.operators
    )
    program = replace(workload.program, operators=operators)
    return program_workload(program, workload.name, time_unit=workload.time_unit)


def three_never() -> tuple[Workload, Cluster]:
    """Return a case once called infeasible: three transfers of 1e8, two of which nobody pays.

    Three accelerators of 9 bytes; the best placement is 0 1 1 2 2 0, of 2.733584204881363.
    """
    workload = Workload(
        name="three transfers of 1e8",
        ids=tuple(range(6)),
        edges=np.array([(0, 1), (0, 2), (0, 5), (2, 3), (3, 4), (4, 5)]),
        times={
            "accelerator": np.array(
                [
                    0.8637431573622018,
                    0.31102290631199814,
                    1.0807910077779777,
                    0.4639522205943748,
                    0.5334370874737734,
                    1.4157132854038512,
                ]
            )
        },
        memory_bytes=np.array([4.0, 4, 4, 4, 3, 3]),
        transfer=np.array(
            [0.2996694612957356, 1e8, 0.14409206170579983, 1e8, 0.15445830081957432, 1e8]
        ),
        colours=np.array([-1, 0, 0, -1, -1, -1]),
    )
    return workload, Cluster((DeviceKind("accelerator", 3, 9.0),))
