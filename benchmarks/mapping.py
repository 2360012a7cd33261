"""Measures mapping: the published protocol's 7 topologies × 12 (S, R), p2p, all-reduce and both.

    python benchmarks/mapping.py --seconds 60 --seeds 5            the table
    python benchmarks/mapping.py --large                           4096 devices: time, memory
    python benchmarks/mapping.py --partition                       20 000 operators, 64 stages

The network is our Semantic FPN on a ResNet-50 backbone, partitioned by `balanced_partition`.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from stagecut import Limits, Workload, load, solve
from stagecut.instances import Mapping
from stagecut.instances.topologies import SIDES_2D, SIDES_3D, topology
from stagecut.solvers.balanced_partition import balanced_partition

CELLS = [(2, 8), (4, 4), (8, 2), (4, 16), (8, 8), (16, 4), (4, 64), (8, 32), (16, 16)]
CELLS += [(4, 128), (8, 64), (16, 32)]
GRIDS = {"mesh2d": SIDES_2D, "torus2d": SIDES_2D, "mesh3d": SIDES_3D, "torus3d": SIDES_3D}
RANDOM = ("random_blk_1", "random_blk_2", "uniform_dist")
MODES = ("p2p", "allr", "both")


def place(kind: str, devices: int, seed: int) -> str | None:
    """Return the topology's name, None if the grid has no such size."""
    if kind in RANDOM:
        return f"{kind}:{devices}@seed={seed}"
    return f"{kind}:{GRIDS[kind][devices]}" if devices in GRIDS[kind] else None


def table(args: argparse.Namespace) -> None:
    """Print a row per cell and seed."""
    workload = load(args.workload)
    print(
        "| topology | S | R | mode | seed | objective ms | bound ms | gap % | s "
        "| proven | bound by |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for kind in args.topologies:
        for s, r in args.cells:
            for seed in range(args.seeds if kind in RANDOM else 1):
                name = place(kind, s * r, seed)
                if name is None:
                    continue
                found = topology(name)
                for mode in args.modes:
                    problem = Mapping(found, s, r, mode, gradients=False, collective="ring")
                    limits = Limits(seconds=args.seconds, seed=seed)
                    result = solve(workload, problem=problem, limits=limits)
                    assert result.plan is not None
                    print(
                        f"| {kind} | {s} | {r} | {mode} | {seed} | {result.objective:.5f} "
                        f"| {result.bound:.5f} | {100 * result.plan.gap:.3f} "
                        f"| {result.seconds:.1f} | {result.status == 'optimal'} "
                        f"| {result.bound_origin} |",
                        flush=True,
                    )


def large(args: argparse.Namespace) -> None:
    """Print time and peak memory as devices grow."""
    workload = load(args.workload)
    print(
        "| topology | devices | S | R | mode | gap % | s | peak MiB |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    names = ["torus3d:8x8x8", "islands:64x8", "torus3d:8x16x16", "islands:256x8"]
    for name in [*names, "torus3d:16x16x16", "islands:512x8"]:
        begin = time.monotonic()
        found = topology(name)
        problem = Mapping(found, 16, found.size // 16, "both")
        result = solve(
            workload, problem=problem, limits=Limits(seconds=args.seconds), started=begin
        )
        assert result.plan is not None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"| {name} | {found.size} | 16 | {found.size // 16} | both "
            f"| {100 * result.plan.gap:.3f} | {result.seconds:.1f} | {peak:.0f} |",
            flush=True,
        )


def random_operators(n: int, seed: int = 0) -> Workload:
    """A random operator graph: short edges, log-normal times and sizes."""
    rng = np.random.default_rng(seed)
    ends = [(max(0, v - int(rng.geometric(0.05))), v) for v in range(1, n) for _ in range(2)]
    return Workload(
        name=f"random {n}",
        ids=tuple(range(n)),
        edges=np.array(ends),
        times={"accelerator": rng.lognormal(0, 1, n)},
        memory_bytes=np.zeros(n),
        transfer=None,
        output_bytes=rng.lognormal(14, 1, n),
        time_unit="us",
    )


def partition() -> None:
    """Print how long a balanced partition takes, and its gap."""
    print(
        "| operators | stages | κ s/byte | objective ms | bound ms | gap % | s |\n"
        "|---|---|---|---|---|---|---|"
    )
    for n in (2_000, 20_000):
        workload = random_operators(n)
        for coefficient in (0.0, 1 / 100e9):
            begin = time.monotonic()
            found = balanced_partition(workload, 64, coefficient)
            print(
                f"| {n} | 64 | {coefficient:.0e} | {1e3 * found.objective:.4f} "
                f"| {1e3 * found.bound:.4f} | {100 * found.gap:.3f} "
                f"| {time.monotonic() - begin:.1f} |",
                flush=True,
            )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workload", default="semantic-fpn-operators-training")
    parser.add_argument("--topologies", nargs="+", default=[*GRIDS, *RANDOM])
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument(
        "--cells", nargs="+", type=lambda c: tuple(map(int, c.split("x"))), default=CELLS
    )
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--partition", action="store_true")
    args = parser.parse_args()
    if args.partition:
        partition()
    elif args.large:
        large(args)
    else:
        table(args)


if __name__ == "__main__":
    main()
