"""The worth of each number in `solvers/`: what changes if it is halved, and if it is doubled.

    python benchmarks/constants.py                      run what the table lacks
    python benchmarks/constants.py mapping core         of these packages alone
    python benchmarks/constants.py --names SPLITS       of these constants alone
    python benchmarks/constants.py --page               write docs/decisions/constants.md

A constant is a number at the top level of a module, or in a record there. (Modules of kernels have
only codes, and take constants as arguments.) A constant is changed in its module's source before
anything is imported, so that copies and defaults change as well. Cells are a few of those in
`ablations.py`, and jobs. Each run is a process of its own, and its limit counts CPU seconds.

A constant runs in cells that read it, those of its own package first, and in two at most unless
`--cells` says more. A direction runs only until one cell shows an effect. An effect is a gap or a
time outside the unchanged strategy's range over three seeds, by more than 0.1 % of the objective,
or by a tenth and 0.2 s of the time. It must show with one seed and again with another, and also
against the unchanged strategy run right after, because CPU seconds buy less on a busy machine.
Numbers below 1 are doubled to 1 at most. Constants of `PROTECTS` do not run: they stay, whatever a
few cells say.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.machinery
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "decisions" / "constants.md"
COLUMNS = ("constant", "value", "change", "workload", "seed", "together", "gap",
           "seconds", "revision", "machine")  # fmt: skip
#: Folders of `solvers/` with constants.
PACKAGES = ("throughput", "latency", "sharding", "job", "mapping", "learned", "core")
CHANGES = ("halved", "doubled")
WHOLE = "unchanged"
SEEDS = 3

#: An effect is more than this: of the gap; of the time, as a factor and in seconds.
GAP, TIMES, SECONDS = 1e-3, 1.1, 0.2

#: Cells of `ablations.py`: problem there, workload, and the method that solves it.
CELLS = (
    ("throughput", "GNMT layers, training", "auto"),
    ("throughput", "stable-diffusion-unet-operators-training@deeper=10 noncontiguous", "auto"),
    ("throughput", "mixtral-8x7b-operators-training@deeper=3 contiguous", "auto"),
    ("throughput", "InceptionV3 layers", "auto"),
    ("throughput", "BERT-12 operators", "auto"),
    ("throughput", "ResNet-50 operators, training", "auto"),
    ("throughput", "gpt2-xl-operators-training@deeper=7 noncontiguous", "auto"),
    ("latency", "resnet50_inference layers, calls 2", "auto"),
    ("latency", "stable-diffusion-unet-operators", "auto"),
    ("latency", "gnmt_inference layers, calls 1", "auto"),
    ("sharding", "resnet50 8", "auto"),
    ("sharding", "resnet50 8 of memory", "auto"),
    ("iteration", "unet K=4 M=16 gpipe", "auto"),
    ("iteration", "resnet50 K=8 M=8 zb-h1", "auto"),
    ("iteration", "t5-large K=8 M=8 interleaved", "auto"),
    ("mapping", "random_blk_2:64 8 × 8 allr", "auto"),
    ("mapping", "random_blk_1:64 8 × 8 p2p", "auto"),
    ("mapping", "islands:4x8 4 × 8 both, busiest-link", "auto"),
    ("mapping", "random_blk_1:16 4 × 4 both", "auto"),
)
#: Training jobs: model, cluster, sequences per iteration, tokens per sequence.
JOBS = (("llama3-70b", "h100:8x8", 512, 8192),)

#: What constants protect that stay whatever a few cells say.
REASONS = {
    "rounding": """
        throughput.column_generation.best_set:ROUNDING
        throughput.dp:SLACK throughput.dp:SAME throughput.dp:CLAIM_TOLERANCE
        latency.label_dp:MARGIN
        sharding.messages:ROUNDING sharding.priced_memory:ROUNDING
        job.iteration.best_first:ALIKE job.iteration.chains:SLACK
        job.stream.dp:CLOSE mapping.parameters:MEMORY_LACK
        core.proofs:ROW_SLACK core.proofs:WHOLE core.proofs:UNDERFLOW core.proofs:LEAST_MULTIPLIER
        core.milp_driver:BOUND_SLACK core.milp_driver:LARGEST core.search:OPTIMAL_GAP
        core.tighten:EPS core.tighten:EXACT core.tighten:SMALL core.tighten:NARROW
        core.tighten:TINY_ROW core.tighten:CUTOFF_SLACK
    """,
    "memory": """
        throughput.column_generation.best_set:LABELS
        throughput.column_generation.pricing_problem:ENTRIES
        throughput.dp:MEMORY_SHARE throughput.dp:FEW_BYTES
        latency.label_dp:MOST_BYTES latency.label_dp:MOST_CODES sharding.elimination:ENTRY_BYTES
        sharding.elimination:MOST_ENTRIES
        sharding.messages:MOST_ENTRIES job.iteration.best_first:MAX_OPTIONS
        job.iteration.best_first:MOST_ALIKE job.iteration.stage_list:MAX_STAGES
        job.iteration.stage_list:MAX_LOOKED_AT job.methods:MOST_ACTIONS job.stream.dp:MOST_IDEALS
        mapping.parameters:MEMORY_COUNTS mapping.parameters:MAX_SPREAD_DEVICES
        mapping.parameters:PROGRAMS.max_devices mapping.parameters:MAX_EXACT_DEVICES
        mapping.parameters:MOST_SPEEDS learned.method:MOST_DECISIONS learned.policy_file:WIDEST
        learned.policy_file:MOST_BYTES core.limits:MEMORY_BYTES core.under_rules:MOST_CASES
    """,
    "ends a search that has no limit": """
        mapping.parameters:ISLAND_SECONDS job.search:PROGRAM_S learned.method:DRAWN
        throughput.local_search:DEFAULT_RESTARTS
    """,
    "work between two looks at the clock": """
        throughput.column_generation.best_set:SLICE
        throughput.column_generation.best_set:STATES_PER_CALL
        throughput.dp:SLICE throughput.dp:LISTED_AT_ONCE
        throughput.multilevel.critical_path:SLICE throughput.multilevel.least_load:SLICE
        latency.label_dp:SLICE latency.lns:SLICE_VISITS core.lattice:SLICE
        mapping.parameters:IDEAL_SLICE job.iteration.stage_list:BLOCK
    """,
    "waiting for processes, or for a solver": """
        core.dask_cluster:CONNECT_S core.dask_cluster:PERIOD_S
        core.dask_cluster:BEAT_S core.dask_cluster:SILENCE_S core.highs:PATIENCE_S
        core.portfolio:START_AFTER_S core.portfolio:STARVED_S core.processes:ATTEMPTS
        core.processes:LAST_WORDS_S core.processes:NICENESS core.search:PERIOD_S
        core.session:GRACE_S core.session:LEFT_S core.session:FIRST_CPU_S
        core.session:STUCK_S core.session:PROGRESS_S
        core.milp_driver:UNBELIEVED_SECONDS core.milp_driver:CHECK_SECONDS
    """,
    "documented default": """
        core.limits:CHEAP_PART core.limits:DEFAULT_SECONDS core.limits:DEFAULT_GAP
        core.limits:DEFAULT_CHEAP_GAP core.limits:MAPPING_GAP
    """,
    "part of a format, or a code": """
        core.highs:_running core.other_solvers:NO_BOUND throughput.partitioners:WEIGHT_SUM
        job.milp:TIME_SCALE core.milp_driver:STATED_OBJECTIVE
        learned.features:FEATURE_SET learned.features:UNIT_FEATURES learned.features:KIND_FEATURES
        learned.features:LARGEST learned.features:_MOST_ROOM learned.features:MOST_SHOWN
        learned.groups:GROUP_FEATURES learned.policy:DEVICE_FEATURES
        learned.policy:ROUNDS learned.policy:WIDTH learned.policy_file:VERSION
    """,
    "how the shipped policies were trained": """
        learned.train:ELITE learned.train:LEARNING_RATE learned.train:FIRST learned.train:STEPS
        learned.train:COPIES learned.train:TARGET_SLACK learned.train:HISTORY
        learned.train:TARGET_SPREAD learned.policy:ACCELERATORS_ALONE
    """,
}
PROTECTS = {key: reason for reason, keys in REASONS.items() for key in keys.split()}


@dataclass(frozen=True)
class Constant:
    """A number in the source of a module: its name, where it stands, and its value."""

    file: Path
    name: str  # of a record's field: RECORD.field
    start: tuple[int, int]  # line, from 1, and byte in it
    end: tuple[int, int]
    value: float

    @property
    def module(self) -> str:
        """Its module, within `solvers`."""
        return ".".join(self.file.relative_to(ROOT / "solvers").with_suffix("").parts)

    @property
    def key(self) -> str:
        """Its name with its module."""
        return f"{self.module}:{self.name}"

    @property
    def top(self) -> str:
        """The name with its module, of the record that it is in."""
        return f"{self.module}:{re.split('[.[]', self.name)[0]}"

    def changed(self, change: str) -> float | None:
        """Return half of the value, or twice as much; None where that is no other number."""
        if isinstance(self.value, int):
            new: float = self.value // 2 if change == "halved" else 2 * self.value
        else:
            new = self.value / 2 if change == "halved" else 2 * self.value
            if 0.0 < self.value <= 1.0:
                new = min(new, 1.0)
        return new if new and new != self.value else None


def changed_sources(group: Sequence[Constant], change: str) -> dict[Path, bytes]:
    """Return the sources of the modules of some constants, with all of these changed."""
    found = {}
    for constant in sorted(group, key=lambda each: each.start, reverse=True):
        source = found.get(constant.file) or constant.file.read_bytes()
        lines = source.splitlines(keepends=True)
        (first, left), (last, right) = constant.start, constant.end
        before, after = lines[first - 1][:left], lines[last - 1][right:]
        lines[first - 1 : last] = [before + repr(constant.changed(change)).encode() + after]
        found[constant.file] = b"".join(lines)
    return found


def constants(problem: str) -> list[Constant]:
    """Return the numbers at the top level of a problem's solvers; kernels have codes alone."""
    files = sorted((ROOT / "solvers" / problem).rglob("*.py"))
    return [
        each
        for file in files
        if "kernel" not in file.name
        for each in in_source(file, file.read_bytes())
    ]


def in_source(file: Path, source: bytes) -> list[Constant]:
    """Return the numbers at the top level of a module."""
    found = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target = statement.target
        else:
            continue
        assert statement.value is not None
        for name, value in _numbers(ast.unparse(target), target, statement.value):
            assert value.end_lineno is not None
            assert value.end_col_offset is not None
            start = (value.lineno, value.col_offset)
            end = (value.end_lineno, value.end_col_offset)
            found.append(Constant(file, name, start, end, eval(ast.unparse(value))))
    return found


def _numbers(name: str, target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the expressions of numbers in an assignment, with their names."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _numbers(ast.unparse(one), one, part)
    elif isinstance(value, ast.Call):
        for keyword in value.keywords:
            yield from _numbers(f"{name}.{keyword.arg}", target, keyword.value)
    elif isinstance(value, ast.Tuple):
        for k, part in enumerate(value.elts):
            yield from _numbers(f"{name}[{k}]", target, part)
    elif all(
        isinstance(x, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
        or (isinstance(x, ast.Constant) and type(x.value) in (int, float))
        for x in ast.walk(value)
    ):
        yield name, value


def reads(of: list[Constant]) -> dict[tuple[str, int], set[str]]:
    """Return which constants, as `file:name`, are read at a line inside a function."""
    homes: dict[str, dict[str, str]] = {}
    for constant in of:
        homes.setdefault(str(constant.file), {})[constant.top.split(":")[1]] = constant.top
    lines: dict[tuple[str, int], set[str]] = {}
    for file in sorted((ROOT / "solvers").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        known = dict(homes.get(str(file), {}))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                home = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                there = homes.get(f"{home}.py", {})
                known |= {x.asname or x.name: there[x.name] for x in node.names if x.name in there}
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                defaults = {id(node) for node in ast.walk(function.args)}
                for node in ast.walk(function):
                    if isinstance(node, ast.Name) and node.id in known:
                        at = function if id(node) in defaults else node
                        for line in range(at.lineno, (at.end_lineno or at.lineno) + 1):
                            lines.setdefault((str(file), line), set()).add(known[node.id])
    return lines


def reached(solve: Callable[[], dict], of: list[Constant]) -> list[str]:
    """Return the constants that a solve reads in functions that Python runs itself."""
    lines = reads(of)
    found: set[str] = set()

    @cache
    def of_code(code: CodeType) -> dict[int, set[str]]:
        if "solvers" not in code.co_filename:
            return {}
        file = str(Path(code.co_filename).resolve())
        numbers = {number for _, _, number in code.co_lines() if number is not None}
        return {number: lines[file, number] for number in numbers if (file, number) in lines}

    def line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            found.update(of_code(frame.f_code).get(frame.f_lineno, ()))
        return line

    def call(frame: FrameType, _event: str, _: object) -> Any:
        return line if of_code(frame.f_code) else None

    threading.settrace(call)
    sys.settrace(call)
    solve()
    sys.settrace(None)
    return sorted(found)


@contextmanager
def changed_source(group: Sequence[Constant], change: str) -> Iterator[None]:
    """Import the package anew in this process, with constants changed in their modules' sources."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("stagecut", "ablate", "ablations"):
            del sys.modules[name]
    original = importlib.machinery.SourceFileLoader.get_code
    sources = changed_sources(group, change)

    def get_code(loader: Any, name: str) -> Any:
        source = sources.get(Path(loader.path).resolve())
        if source is None:
            return original(loader, name)
        return loader.source_to_code(source, loader.path)

    with patch.object(importlib.machinery.SourceFileLoader, "get_code", get_code):
        for constant in group:
            module = import_module("stagecut.solvers." + constant.module)
            if eval(constant.name, vars(module)) != constant.changed(change):
                raise RuntimeError(f"{constant.key} is not {constant.changed(change)}")
        yield


def cells() -> dict[str, Callable[[int, float], dict]]:
    """Return the solve of each cell, by its package and workload, from a seed and a limit."""
    from ablate import PROBLEMS, solve_cell

    def ablated(problem: str, workload: str, method: str, seed: int, seconds: float) -> dict:
        cell = replace(PROBLEMS[problem]()[0][workload], method=method)
        return solve_cell(cell, "", {}, seed, seconds)

    found = {}
    for problem, workload, method in CELLS:
        package = "job" if problem == "iteration" else problem
        name = f"{package}: {workload}{f', {method}' * (method in ('learned', 'milp'))}"
        if method == "learned":
            name = name.replace(package, "learned", 1)
        found[name] = partial(ablated, problem, workload, method)
    for job in JOBS:
        found[f"job: {job[0]} {job[1]}"] = partial(solve_training, *job)
    return found


def solve_training(
    model: str, cluster: str, batch: int, sequence: int, seed: int, seconds: float
) -> dict:
    """Solve a training job and return the row."""
    from clocks import cpu_clock

    from stagecut import Limits
    from stagecut.api.job import solve_job
    from stagecut.instances.costs.clusters import training_cluster
    from stagecut.instances.job.problem import TrainingJob

    job = TrainingJob(global_batch=batch, sequence=sequence, launcher="megatron")
    with cpu_clock():
        begun = time.process_time()
        limits = Limits(seconds=seconds, seed=seed, gap=0.0, since=begun)
        found = solve_job(model, training_cluster(cluster), job, limits=limits)
        used = time.process_time() - begun
    return {"seconds": round(used, 3), "gap": 1.0 if found.plan is None else found.plan.gap}


def solve_changed(
    group: Sequence[Constant],
    change: str,
    runs: list[tuple[str, int]],
    seconds: float,
    shows: Callable[[dict], bool],
) -> list[dict]:
    """Solve cells with seeds, each in a process, until one shows an effect twice; return rows."""
    rows = []
    with changed_source(group, change):
        from ablate import in_a_process

        solves = cells()
        for cell, seed in runs:
            shown = []
            for again in (seed, seed + 1):
                row = in_a_process(solves[cell], again, seconds)
                rows.append({"workload": cell, "seed": again, **row})
                shown.append(shows(rows[-1]))
                if not shown[-1]:
                    break
            if all(shown):
                break
    return rows


def find_reads(cell: str, seconds: float) -> list[str]:
    """Return the constants that the solve of a cell reads in functions that Python runs itself."""
    with changed_source((), ""):
        every = [each for package in PACKAGES for each in constants(package)]
        return reached(lambda: cells()[cell](0, seconds), every)


def effect(row: dict, unchanged: pd.DataFrame) -> bool:
    """Return whether gap or time lie outside those of the unchanged strategy."""
    cell = unchanged[unchanged["workload"].eq(row["workload"])]
    gaps, times = cell["gap"], cell["seconds"]
    same_gap = gaps.min() - GAP <= row["gap"] <= gaps.max() + GAP
    least, most = times.min() / TIMES - SECONDS, times.max() * TIMES + SECONDS
    return not (same_gap and least <= row["seconds"] <= most)


def run(args: argparse.Namespace, table: Path) -> None:
    """Run what the table lacks."""
    import ablate

    for package in ("highspy", "numba", "torch"):  # which every run needs, are imported once
        import_module(package)

    names = [name for name in cells() if any(part in name for part in args.only)]
    known = pd.read_csv(table) if table.exists() else pd.DataFrame(columns=list(COLUMNS))
    origin = {"revision": ablate.revision(), "machine": ablate.machine()}
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        if file.tell() == 0:
            writer.writeheader()

        def write(rows: list[dict], constant: str, value: Any, change: str) -> None:
            for row in rows:
                row |= {"constant": constant, "change": change, "value": value, **origin}
                row.setdefault("together", "")
                writer.writerow(row)
                print(*(row[name] for name in COLUMNS[:7]), sep=", ", flush=True)
            file.flush()

        def solved(group: Sequence[Constant], change: str, runs: list, shows: Any) -> list[dict]:
            return ablate.in_a_process(solve_changed, group, change, runs, args.seconds, shows)

        def tried(group: list[Constant], change: str) -> None:
            """Run constants changed together, and halves of them where that shows an effect."""
            nonlocal unchanged
            wanted = {name for each in group for name in where[each.key]}
            rows: list[dict] = []
            for name in names:
                if name not in wanted:
                    continue
                rows += solved(group, change, [(name, 0)], partial(effect, unchanged=unchanged))
                last = [row for row in rows if row["workload"] == name]
                if len(last) < 2:
                    continue
                again = solved((), "", [(name, 0)], lambda _row: False)
                write(again, WHOLE, "", "none")  # other load may be what it shows
                unchanged = pd.concat([unchanged, pd.DataFrame(again)])
                if all(effect(row, unchanged) for row in last):
                    if len(group) > 1:
                        tried(group[: len(group) // 2], change)
                        tried(group[len(group) // 2 :], change)
                        return
                    break
            for each in group:
                own = [row for row in rows if row["workload"] in where[each.key]]
                write([row | {"together": len(group)} for row in own], each.key, each.value, change)

        unchanged = known[known["change"].eq("none")]
        done = set(zip(unchanged["workload"], unchanged["seed"], strict=True))
        for name in names:
            for seed in range(SEEDS):
                if (name, seed) not in done:
                    rows = solved((), "", [(name, seed)], lambda _row: False)
                    write(rows, WHOLE, "", "none")
                    unchanged = pd.concat([unchanged, pd.DataFrame(rows)])
        told = known[known["change"].eq("reads")]
        reads = {row.workload: set(row.constant.split()) for row in told.itertuples()}
        for name in names:
            if name not in reads:
                reads[name] = set(ablate.in_a_process(find_reads, name, args.seconds))
                row = dict.fromkeys(COLUMNS) | {"workload": name}
                write([row], " ".join(sorted(reads[name])), "", "reads")
        where: dict[str, list[str]] = {}
        for package in args.packages or PACKAGES:
            own = sorted(names, key=lambda name: not name.startswith(f"{package}:"))
            asked = [
                each
                for each in constants(package)
                if each.key not in PROTECTS
                and (not args.names or {each.name, each.key} & set(args.names))
            ]
            for each in asked:
                where[each.key] = [name for name in own if each.top in reads[name]][: args.cells]
                if not where[each.key] and not known["constant"].eq(each.key).any():
                    write([dict.fromkeys(COLUMNS)], each.key, each.value, "not read")
            for change in CHANGES:
                done = set(known.loc[known["change"].eq(change), "constant"])
                left = [
                    each
                    for each in asked
                    if where[each.key] and each.key not in done and each.changed(change) is not None
                ]
                size = len(left) if args.together else 1
                for begin in range(0, len(left), size or 1):
                    tried(left[begin : begin + size], change)


TEXT = """
Of {tried} tried, {effects} show an effect in the cells below: hardly any needs tuning.

**Asked.** Halved or doubled, does a constant change the gap by more than {gap} % of the objective,
or the time by more than a tenth and {seconds} CPU s?

**Measured** (`python benchmarks/constants.py`; rows with revision and machine in
`benchmarks/results/ablation-constants.csv`). A cell is a workload, or a job, solved for 2 CPU s
(3 or 4 where that is in its name); in brackets is the unchanged strategy's median. A constant
runs only in cells that read it, and no more once one shows an effect. *No effect* is said of the
cells tried alone; of some constants several were changed at once (column `together`). *Not read*:
by none of the cells. There are {now} numbers now{left}.

**Decided.** Where a number without effect steered a mechanism of its own, the mechanism went with
it, or two numbers became one; these are marked *gone*, as are those of code that was replaced. A
limit, a size or a share that an algorithm cannot do without stays as a plain number. Constants that
protect stay whatever a few cells say; the last table names what each protects.
"""


def purpose(constant: Constant) -> str:
    """Return what a constant is for: the comment above it, else beside it."""
    lines = constant.file.read_text(encoding="utf-8").splitlines()
    line = constant.start[0] - 1
    if "#" in lines[line]:
        return lines[line].partition("#")[2].strip(" :")
    while not lines[line][:1].isalpha():  # a number inside a record
        line -= 1
    above = []
    while line and lines[line - 1].startswith("#:"):
        line -= 1
        above.insert(0, lines[line][2:].strip())
    return re.split(r"(?<=[a-z)])[.:] ", " ".join(above))[0].strip(".").replace("|", "or")


def verdict(key: str, change: str, found: pd.DataFrame) -> str:
    """Return what changing a constant does, or why that is not known."""
    own = found[found["constant"].eq(key)]
    rows = own[own["change"].eq(change)].to_dict("records")
    if not rows:
        return "not read" if own["change"].eq("not read").any() else "not tried"
    unchanged = found[found["change"].eq("none")]
    same = unchanged[unchanged["revision"].isin(own["revision"])]
    unchanged = same if set(own["workload"].dropna()) <= set(same["workload"]) else unchanged
    for row in rows:
        seeds = [again for again in rows if again["workload"] == row["workload"]]
        if all(effect(again, unchanged) for again in seeds):
            return _shown(row, unchanged)
    return "no effect"


def _shown(row: dict, unchanged: pd.DataFrame) -> str:
    cell = unchanged[unchanged["workload"].eq(row["workload"])]
    gap, time = cell["gap"].median(), cell["seconds"].median()
    if not cell["gap"].min() - GAP <= row["gap"] <= cell["gap"].max() + GAP:
        return f"{row['workload']}: {100 * row['gap']:.2f} % ({100 * gap:.2f} %)"
    return f"{row['workload']}: {row['seconds']:.1f} s ({time:.1f} s)"


def page() -> str:
    """Return the page of constants."""
    found = pd.read_csv(RESULTS / "ablation-constants.csv")
    measured = set(found["constant"])
    unread = set(found.loc[found["change"].eq("not read"), "constant"])
    every = {package: constants(package) for package in PACKAGES}
    keys = {each.key for of in every.values() for each in of}
    gone = found[found["change"].isin(CHANGES) & ~found["constant"].isin(keys)]
    counts, tried, left, stay = [], [], [], []
    still = 0
    for package, of in every.items():
        open_ = [each for each in of if each.key not in PROTECTS]
        open_ = [each for each in open_ if any(each.changed(change) for change in CHANGES)]
        own = [each for each in open_ if each.key in measured]
        missing = [each for each in open_ if each.key not in measured]
        numbers = len(of), len(of) - len(open_), len(own), len(missing)
        counts.append(f"| {package} | {' | '.join(map(str, numbers))} |")
        tried += own
        still += len(missing)
        stay += [each for each in of if each.key in PROTECTS]
        if missing:
            left.append(f"- **{package}** ({len(missing)}): {_listed(missing)}")
    ran = {*gone["constant"], *(each.key for each in tried if each.key not in unread)}
    lines = [
        "# Which constants of the searches earn their place?",
        "",
        "<!-- made by benchmarks/constants.py --page: change that -->",
        "",
        TEXT.strip().format(
            gap=f"{100 * GAP:g}",
            seconds=SECONDS,
            now=len(keys),
            left=f", {still} of them still to be tried" if still else "",
            tried=len(ran),
            effects=sum(
                any(verdict(key, change, found).endswith(")") for change in CHANGES) for key in ran
            ),
        ),
        "",
        "| package | numbers | protect, or zero | tried, or not read | not tried |",
        "|---|---|---|---|---|",
        *counts,
        "",
        "## Tried",
        "",
        "| constant | value | halved | doubled | what for |",
        "|---|---|---|---|---|",
    ]
    for key, rows in gone.groupby("constant", sort=False):
        told = " | ".join(verdict(str(key), change, found) for change in CHANGES)
        name, value = str(key).replace(":", "."), float(rows["value"].iloc[0])
        lines.append(f"| `{name}` | {value:g} | {told} | gone |")
    for each in tried:
        told = " | ".join(
            "no other number" if each.changed(change) is None else verdict(each.key, change, found)
            for change in CHANGES
        )
        lines.append(f"| `{_shown_name(each)}` | {each.value:g} | {told} | {purpose(each)} |")
    if left:
        lines += ["", "## Not tried", "", *left]
    lines += ["", "## What protects", ""]
    lines += ["| constant | value | protects | what for |", "|---|---|---|---|"]
    last = ""
    for each in stay:
        use = purpose(each)
        shown = "as above" if use and use == last else use
        told = PROTECTS[each.key]
        lines.append(f"| `{_shown_name(each)}` | {each.value:g} | {told} | {shown} |")
        last = use
    return "\n".join(lines) + "\n"


def _shown_name(constant: Constant) -> str:
    return constant.key.replace(":", ".")


def _listed(missing: list[Constant]) -> str:
    """Return names by module; the numbers of one tuple or record as their count."""
    modules: dict[str, Counter[str]] = {}
    for each in missing:
        module = each.module.partition(".")[2]
        modules.setdefault(module, Counter())[each.top.partition(":")[2]] += 1
    return "; ".join(
        f"`{module}` "
        + ", ".join(name if count == 1 else f"{name} ({count})" for name, count in names.items())
        for module, names in modules.items()
    )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", help="default: all")
    parser.add_argument("--csv", type=Path, default=RESULTS / "ablation-constants.csv")
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of a run")
    parser.add_argument("--cells", type=int, default=2, help="cells of a constant, at most")
    parser.add_argument("--names", nargs="*", help="default: every constant")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names of cells")
    parser.add_argument("--together", action="store_true", help="change those of a package at once")
    parser.add_argument("--page", action="store_true", help="write the page")
    args = parser.parse_args()
    if args.page:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        run(args, args.csv)


if __name__ == "__main__":
    main()
