"""Mapping by the published protocol: 7 topologies × 12 (S, R), p2p, all-reduce and both.

    python benchmarks/mapping.py                              every cell, 60 s each, five seeds
    python benchmarks/mapping.py --seconds 10 --seeds 1 --budget 1500      the same in 25 minutes
    python benchmarks/mapping.py --seconds 600 --open         longer, what is not proven yet
    python benchmarks/mapping.py --seeds 2 --open             a second seed where the first is open
    python benchmarks/mapping.py --report                     the tables of what the file has
    python benchmarks/mapping.py --write                      results/mapping_limits.csv of it

Finished cells go to a CSV file (--csv) and are not run again, so a run can be stopped and continued
at any time. The network is our Semantic FPN on a ResNet-50 backbone. `balanced_partition` cuts it
once per number of stages with κ = 0 (--kappa, in seconds per byte), so that every topology and mode
gets the same stages. The definition is the plain one of the tables: one microbatch, no gradients,
rings.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from clocks import cpu_clock
from results import write

from stagecut import Limits, Result, Workload, load, solve
from stagecut.instances import DeviceMapping, StageCosts, stage_costs
from stagecut.instances.common.kernel import compile_at_once
from stagecut.instances.topologies import topology
from stagecut.solvers.mapping.partition import balanced_partition

CELLS = [(2, 8), (4, 4), (8, 2), (4, 16), (8, 8), (16, 4), (4, 64), (8, 32), (16, 16)]
CELLS += [(4, 128), (8, 64), (16, 32)]
#: Sides of the grids of the published tables, by number of devices.
SIDES_2D = {16: "4x4", 64: "8x8", 256: "16x16"}
SIDES_3D = {64: "4x4x4", 512: "8x8x8"}
GRIDS = {"mesh2d": SIDES_2D, "torus2d": SIDES_2D, "mesh3d": SIDES_3D, "torus3d": SIDES_3D}
RANDOM = ("random_blk_1", "random_blk_2", "uniform_dist")
MODES = ("p2p", "allr", "both")
KEYS = ["kappa", "limit", "topology", "S", "R", "mode", "seed"]
COLUMNS = [*KEYS, "objective_ms", "bound_ms", "gap", "seconds", "proven", "origin"]


def place(kind: str, devices: int, seed: int) -> str | None:
    """Return the topology's name, None if the grid has no such size."""
    if kind in RANDOM:
        return f"{kind}:{devices}@seed={seed}"
    return f"{kind}:{GRIDS[kind][devices]}" if devices in GRIDS[kind] else None


def as_chain(costs: StageCosts) -> Workload:
    """Return stages as a workload of one node each, so that there is but one way to cut it."""
    return Workload(
        name="stages",
        ids=tuple(range(costs.size)),
        edges=np.array([(s, s + 1) for s in range(costs.size - 1)]).reshape(-1, 2),
        times={"accelerator": 1e3 * costs.compute_s},
        memory_bytes=np.zeros(costs.size),
        transfer=None,
        output_bytes=np.append(costs.forward_bytes, 0.0),
        time_unit="ms",
        extra={"weight_bytes": costs.parameter_bytes},
    )


def cells(args: argparse.Namespace) -> list[dict[str, object]]:
    """Return the cells, small machines first, one seed after the other."""
    wanted: list[dict[str, object]] = []
    for seed in range(args.seeds):
        for s, r in sorted(args.cells, key=lambda cell: cell[0] * cell[1]):
            for kind in args.topologies:
                if place(kind, s * r, seed) is None or (seed and kind in GRIDS):
                    continue
                for mode in args.modes:
                    key = (args.kappa, args.seconds, kind, s, r, mode, seed)
                    wanted.append(dict(zip(KEYS, key, strict=True)))
    return wanted


def run(args: argparse.Namespace) -> None:
    """Run the cells that the file does not have."""
    begin = time.monotonic()
    known = pd.read_csv(args.csv) if args.csv.exists() else pd.DataFrame(columns=COLUMNS)
    done = {tuple(row) for row in known[KEYS].itertuples(index=False)}
    closed = known.groupby([key for key in KEYS if key not in ("limit", "seed")])["proven"].all()
    proven = set(closed[closed].index)
    workload = load(args.workload)
    stages = {
        s: as_chain(stage_costs(workload, balanced_partition(workload, s, args.kappa), s))
        for s in {s for s, _ in args.cells}
    }
    warm_up(stages[args.cells[0][0]], args.cells[0][0])
    with args.csv.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not known.size and file.tell() == 0:
            writer.writeheader()
        for cell in cells(args):
            bare = tuple(value for key, value in cell.items() if key not in ("limit", "seed"))
            if tuple(cell.values()) in done or (args.open and bare in proven):
                continue
            if time.monotonic() - begin > args.budget:
                print("the budget is spent; the same command goes on from here")
                return
            row = {**cell, **solved(stages[cell["S"]], cell, args.workers)}  # type: ignore[index]
            writer.writerow(row)
            file.flush()
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def warm_up(workload: Workload, stages: int) -> None:
    """Load the compiled kernels, which belong to no cell."""
    compile_at_once()
    for name, kind in product(("random_blk_1:24", "mesh2d:2x8"), ("ring", "cheapest")):
        size = topology(name).size // stages
        problem = DeviceMapping(topology(name), stages, size, "both", collective=kind)  # type: ignore[arg-type]
        solve(workload, problem=problem, limits=Limits(seconds=600, nodes=2))


def solved(workload: Workload, cell: dict[str, object], workers: int | None) -> dict[str, object]:
    """Solve one cell; time includes the routes of the topology."""
    s, r = int(str(cell["S"])), int(str(cell["R"]))
    name = place(str(cell["topology"]), s * r, int(str(cell["seed"])))
    assert name is not None
    begin = time.monotonic()
    problem = DeviceMapping(
        topology(name),
        s,
        r,
        str(cell["mode"]),  # type: ignore[arg-type]
        gradients=False,
        collective="ring",
    )
    limits = Limits(seconds=float(str(cell["limit"])), seed=int(str(cell["seed"])), since=begin)
    result = solve(workload, problem=problem, limits=limits, workers=workers)
    assert result.plan is not None
    return {
        "objective_ms": result.objective,
        "bound_ms": result.bound,
        "gap": result.plan.gap,
        "seconds": round(proven_at(result), 3),
        "proven": result.status == "optimal",
        "origin": result.bound_origin.removesuffix(", stages given"),
    }


def proven_at(result: Result) -> float:
    """Return when the gap was closed; breaking ties after that does not count."""
    return next((p.seconds for p in result.trace if p.gap <= 1e-6), result.seconds)


def report(args: argparse.Namespace) -> str:
    """Return the table as markdown: over seeds the median, worst gap and time, number proven."""
    found = pd.read_csv(args.csv)
    kinds = pd.Categorical(found["topology"], [*GRIDS, *RANDOM])
    found = found.assign(topology=kinds).sort_values(["topology", "S"], kind="stable")
    found["cell"] = found["S"].astype(str) + " × " + found["R"].astype(str)
    order = [f"{s} × {r}" for s, r in CELLS]
    lines = []
    for (kappa, limit), part in found.groupby(["kappa", "limit"]):
        lines += [f"κ = {kappa:g} s/byte, {limit:g} s a cell:", ""]
        lines += ["| topology | mode | cells | proven | ≤ 0.1 % | ≤ 1 % | worst gap | longest |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for (kind, mode), group in part.groupby(["topology", "mode"], sort=False, observed=True):
            near = [f"{(group['gap'] <= gap).sum()}" for gap in (1e-3, 1e-2)]
            lines.append(
                f"| {kind} | {mode} | {len(group)} | {int(group['proven'].sum())} "
                f"| {near[0]} | {near[1]} | {100 * group['gap'].max():.3g} % "
                f"| {group['seconds'].max():.1f} s |"
            )
        lines += ["", "Objective in ms (median of the seeds), worst gap, longest time:", ""]
        names = [name for name in order if name in set(part["cell"])]
        lines += ["| topology | mode | " + " | ".join(names) + " |"]
        lines += ["|---" * (2 + len(names)) + "|"]
        for (kind, mode), group in part.groupby(["topology", "mode"], sort=False, observed=True):
            texts = [_cell(group[group["cell"] == name]) for name in names]
            lines.append(f"| {kind} | {mode} | " + " | ".join(texts) + " |")
        lines.append("")
    return "\n".join(lines)


def write_limits(args: argparse.Namespace) -> None:
    """Write a row per cell and limit: objective and its spread over seeds, gap, time."""
    found = pd.read_csv(args.csv)
    rows = []
    for key, group in found.groupby(["topology", "mode", "S", "R", "limit"], sort=False):
        kind, mode, s, r, limit = key
        row = {
            "topology": kind,
            "mode": mode,
            "stages": s,
            "replicas": r,
            "limit_s": f"{limit:g}",
            "seeds": len(group),
            "objective_ms": f"{group['objective_ms'].median():.5g}",
            "least_ms": f"{group['objective_ms'].min():.5g}",
            "most_ms": f"{group['objective_ms'].max():.5g}",
            "proven": int(group["proven"].sum()),
            "worst_gap_percent": f"{100 * group['gap'].max():.3g}",
            "longest_s": f"{group['seconds'].max():.1f}",
            "seed": "0" if len(group) == 1 else f"0 to {len(group) - 1}",
        }
        rows.append({name: str(value) for name, value in row.items()})
    keys = ("topology", "mode", "stages", "replicas", "limit_s")
    write("mapping_limits", rows, "", keys=keys)


def _cell(group: pd.DataFrame) -> str:
    if group.empty:
        return "–"
    gap = "proven" if group["proven"].all() else f"{100 * group['gap'].max():.2g} %"
    return f"{group['objective_ms'].median():.4g}, {gap}, {group['seconds'].max():.1f} s"


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of a cell")
    parser.add_argument("--workers", type=int, help="processes of a solve; default: one per core")
    parser.add_argument("--cpu", action="store_true", help="seconds are the process's CPU seconds")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for all cells")
    parser.add_argument("--seeds", type=int, default=5, help="of random topologies and search")
    parser.add_argument("--kappa", type=float, default=0.0, help="seconds per byte of the cut")
    parser.add_argument("--workload", default="semantic-fpn-operators-training")
    parser.add_argument("--topologies", nargs="+", default=[*GRIDS, *RANDOM])
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument(
        "--cells", nargs="+", type=lambda c: tuple(map(int, c.split("x"))), default=CELLS
    )
    parser.add_argument("--open", action="store_true", help="leave out cells that are proven")
    parser.add_argument("--csv", type=Path, default=Path("mapping.csv"))
    parser.add_argument("--report", action="store_true", help="print the tables")
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    args = parser.parse_args()
    if args.report:
        print(report(args))
    elif args.write:
        write_limits(args)
    else:
        with cpu_clock() if args.cpu else nullcontext():
            run(args)


if __name__ == "__main__":
    main()
