"""The page of benchmarks, docs/benchmarks.md, from the tables in `results/`.

    python benchmarks/page.py

Every number on the page is a value of a table, or a count, median or extreme of one; `results.py`
writes the tables. A test compares the page with what this program makes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from math import isinf
from pathlib import Path
from statistics import median

from results import Row, read
from scipy.stats import spearmanr

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Section:
    """A section of the page: what was asked, the tables it is made of, and how it is shown."""

    title: str
    text: str
    tables: Sequence[str]
    show: Callable[[], list[str]]


#: Topologies that are one row of mappings.
MESHES = ("mesh2d", "torus2d", "mesh3d", "torus3d")
#: Models with experts, which are one row of training jobs.
MIXTURES = ("mixtral-8x7b", "mixtral-8x22b", "qwen3-235b-a22b", "deepseek-v3")
#: Kernels that read and write memory more than they compute.
OTHER_KERNELS = "pointwise, norms, loss, optimizer, copies"
#: Columns of times of an iteration.
ERRORS = ("loss", "gradient")
#: Reasons for which an outer point of a training job is ruled out.
REASONS = ("capacity", "work", "relaxation", "program", "exhausted", "open")


def number(value: str) -> float:
    """Return a value as a number, infinity where there is none."""
    return float(value) if value else float("inf")


def percent(value: float) -> str:
    """Return a gap of that many percent, *proved* below 1e-6."""
    return "proved" if value <= 1e-4 else f"{value:.2g} %"


def table(header: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table; bars divide the header."""
    names = [name.strip() for name in header.split("|")]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return ["", *lines, ""]


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """Return rows by their values in some columns, in the order of the file."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return dict(groups)


def source(names: Sequence[str]) -> str:
    """Return where the rows of some tables come from, as a line of the page."""
    rows = [row for name in names for row in read(name)]

    def distinct(column: str) -> list[str]:
        return sorted({row[column] for row in rows} - {""})

    days = [date.fromisoformat(day) for day in distinct("date")]
    span = f"{days[0]:%-d %B %Y}" + (f" to {days[-1]:%-d %B}" if days[1:] else "")
    seeds = distinct("seed")
    files = ", ".join(f"`{name}.csv`" for name in names)
    drawn = f"; seeds {', '.join(seeds)}" if seeds else ""
    return f"*{files}: {span}; {' or '.join(distinct('machine'))}{drawn}.*"


def written(sections: Iterable[Section]) -> list[str]:
    """Return the lines of sections, each with the origin of its tables at its end."""
    lines: list[str] = []
    for section in sections:
        *shown, last = section.show()
        end = [f"{last} {source(section.tables)}"] if last else [last, source(section.tables)]
        text = [section.text] if section.text else []
        lines += ["", f"## {section.title}", "", *text, *shown, *end]
    return lines


def markdown(lines: Iterable[str]) -> str:
    """Return lines as the text of a page, with at most one empty line in a row."""
    text = "\n".join(line.rstrip() for line in lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.strip() + "\n"


def throughput() -> list[str]:
    contiguous = {(row["graph"], row["workload"]): row for row in read("contiguous")}
    close = [row for row in read("noncontiguous") if row["target_percent"] == "0.1"]
    others = grouped(read("baselines"), "workload")
    rows = []
    for row in close:
        kind, name = row["workload"].split("/")
        graph = kind.removesuffix("Graphs").lower()
        chain = contiguous[graph, name]
        rivals = {
            each["method"]: float(each["objective_over_bound"])
            for each in others[f"{graph}s/{name}",]
            if each["method"] not in ("column-generation", "dp")
        }
        best = min(rivals, key=rivals.__getitem__)
        rows.append(
            (
                f"{name}, {graph}s",
                f"{number(chain['optimum']):.8g}",
                chain["seconds"],
                chain["first_seconds"],
                row["objective"],
                f"{row['gap_percent'].removesuffix('0')} %",
                row["seconds_to_1_percent"],
                row["seconds_to_target"],
                f"+{100 * (rivals[best] - 1):.1f} % ({best})",
            )
        )
    pairs = grouped(read("workers"), "workload").values()
    faster = [number(a["seconds"]) / number(b["seconds_to_gap_of_one"]) for a, b in pairs]
    proved = [number(row["gap_percent"]) <= 1 for row in read("milp_gap")]
    build = max(number(row["seconds"]) for row in read("milp_build"))
    told = "; ".join(
        f"{row['workload']}, {row['variant']}: gap {row['gap_percent']} %"
        for row in read("noncontiguous_variants")
    )
    killed = read("cluster_loss")[-1]
    agree = [
        abs(number(row["optimum"]) / number(row["published"]) - 1) <= 1e-6
        for row in contiguous.values()
    ]
    return [
        *table(
            "workload | contiguous | s | first call | non-contiguous | gap | s to 1 % "
            "| s to 0.1 % | best baseline, over bound",
            rows,
        ),
        f"{sum(agree)} of {len(agree)} contiguous optima are the published ones, to 1e-6. Two "
        f"processes reach the gap that one ends with {min(faster):.1f} to {max(faster):.1f} times "
        f"as fast. The compact integer program alone is within 1 % on {sum(proved)} of "
        f"{len(proved)} graphs in 300 s; the one of BERT-12 training is built and handed over in "
        f"at most {build:.2f} s. With other rules, after 20 CPU s at most: {told}.",
        "",
        "PyTorch models of `models.py` with backward passes within 20 CPU s, iterations of 8 "
        "microbatches under 1F1B (`traced_models.py`); and training graphs of the catalogue with "
        "more blocks or microbatches within 50 to 60 s (`large_graphs.py`, [what bounds "
        "them](decisions/large-graphs.md), and of Mixtral [what is "
        "left](decisions/series-of-segments.md)). Gap asked for 1 %, imports counted. *Reached of "
        "all, the largest gap, CPU seconds in the median and at most.*",
        *more_graphs(),
        f"Large graphs take at most {max(number(r['peak_gib']) for r in read('large_graphs'))} GiB "
        f"of memory. On a Dask cluster of four processes, one of which is killed after "
        f"{killed['killed_after']}, nothing is lost: {killed['workload']} had "
        f"{killed['objective_then']} then and ends with {killed['objective']}, gap "
        f"{killed['gap_percent']} %.",
    ]


def more_graphs() -> list[str]:
    """Return gaps and times of traced models and of large graphs, by problem and size."""
    iterations = [row for row in read("traced_gaps") if row["split"] == "iteration"]
    traced = [row | {"graphs": "PyTorch models"} for row in [*read("traced_models"), *iterations]]
    large = [
        row
        | {"graphs": f"about {round(int(row['operators']), -4):,} operators"}
        | {"split": row["split"].replace("-", "")}
        for row in read("large_graphs")
    ]
    rows = []
    for (graphs,), group in grouped([*traced, *large], "graphs").items():
        devices = sorted({int(row["devices"]) for row in group})
        by_split = grouped(group, "split")
        splits = ("contiguous", "noncontiguous", "iteration")
        cells = [_reached(by_split[split,]) if (split,) in by_split else "" for split in splits]
        rows.append((graphs, f"{devices[0]} to {devices[-1]}", *cells))
    return table("graphs | devices | contiguous | non-contiguous | iteration", rows)


def _reached(rows: Sequence[Row]) -> str:
    """Return how many gaps are at most 1 %, the largest, and CPU seconds: median and longest."""
    worst = max(rows, key=lambda row: number(row["gap_percent"]))
    inside = sum(number(row["gap_percent"]) <= 1 for row in rows)
    seconds = [number(row["cpu_seconds"]) for row in rows]
    return (
        f"{inside} of {len(rows)}, {worst['gap_percent']} % "
        f"({worst.get('model') or worst['workload']}), {median(seconds):.1f} and "
        f"{max(seconds):.1f} s"
    )


def latency() -> list[str]:
    rows, large = [], ""
    for (name,), group in grouped(read("latency"), "workload").items():
        cells = []
        for calls in ("1", "2"):
            auto = [r for r in group if r["method"] == "auto" and r["calls"] == calls]
            cells += [
                text
                for row in auto
                for text in (row["latency"], percent(number(row["gap_percent"])), row["seconds"])
            ] or [""] * 3
        heuristics = [
            (number(row["latency"]), row["method"])
            for row in group
            if row["status"] == "feasible"
            and row["calls"] == "1"
            and row["method"] not in ("auto", "milp")
        ]
        best, method = min(heuristics)
        ahead = f"+{100 * (best / number(cells[0]) - 1):.1f} % ({method})"
        if cells[3]:
            rows.append((name, *cells, ahead))
        else:
            large = f"{name}, one call: gap {cells[1]} after {cells[2]} s, best heuristic {ahead}."
    program = [row for row in read("latency") if row["method"] == "milp"]
    open_cells = [row for row in read("latency_calls") if number(row["gap_percent"]) > 1e-4]
    told = "; ".join(
        f"{row['workload']} with {row['calls']} calls keeps {row['gap_percent']} %"
        for row in open_cells
    )
    return [
        *table(
            "workload | one call | gap | s | two calls | gap | s | best heuristic, one call", rows
        ),
        f"Larger: {large} The integer program alone proves "
        f"{sum(number(r['gap_percent']) <= 1e-4 for r in program)} of {len(program)} in 60 s. "
        "Asked for 1e-6 with one, two and three calls, "
        f"{len(read('latency_calls')) - len(open_cells)} of {len(read('latency_calls'))} are "
        f"proved; {told}.",
    ]


def iterations() -> list[str]:
    cells = []
    for (schedule,), group in grouped(read("iteration"), "schedule").items():
        row, ahead = [schedule, f"{_asked(schedule)} %"], []
        for own in grouped(group, "accelerators").values():
            found = [one for one in own if one["objective_ms"]]
            gaps = [number(one["gap_percent"]) for one in found]
            near = sum(gap <= _asked(schedule) for gap in gaps)
            seconds = median(number(one["seconds"]) for one in found)
            row.append(f"{near} of {len(gaps)}, {max(gaps):.2f} %, {seconds:.1f} s")
            others = [one["best_other_plan_percent"] for one in found]
            ahead.append(f"{median(float(other) for other in others if other):+.1f}")
        cells.append((*row, ", ".join(ahead) + " %"))
    runs = [row for row in read("run_iteration") if row["split"] != "one process"]
    errors = [float(row["error_percent"]) for row in runs]
    published = read("iteration_published")
    fits = [row for row in published if row["status"] == "feasible"]
    return [
        *table("schedule | asked | K = 4 | K = 8 | K = 16 | best other plan, over ours", cells),
        f"Of the published training "
        f"graphs on their own devices {len(fits)} cells of {len(published)} are feasible, "
        f"{sum(number(row['gap_percent']) <= 0.1 for row in fits)} of them proved to 0.1 %. "
        f"{len(runs)} plans run on two processes: the iteration was predicted {min(errors):+.1f} "
        f"to {max(errors):+.1f} % off; how far, depends on the pace of the host.",
    ]


def _asked(schedule: str) -> int:
    """Return the gap in percent that is asked for under a schedule."""
    return 1 if schedule in ("gpipe", "1f1b") else 3


def mapping() -> list[str]:
    limited = read("mapping_limits")
    limit = max(limited, key=lambda row: number(row["limit_s"]))["limit_s"]
    longest = [row for row in limited if row["limit_s"] == limit]
    rows, modes = [], ("p2p", "allr", "both")
    kinds = [
        row | {"kind": ", ".join(MESHES) if row["topology"] in MESHES else row["topology"]}
        for row in longest
    ]
    for (topology,), group in grouped(kinds, "kind").items():
        shown = [_closed([row for row in group if row["mode"] == mode]) for mode in modes]
        rows.append((topology, *shown))
    single = read("mapping_open")
    small = [row for row in single if _devices(row["cell"]) <= 256]
    inside = sum(number(row["gap_percent"]) <= 1 for row in small)
    larger = "; ".join(
        f"{row['cell']} {row['gap_percent']} % after {row['seconds']} s"
        for row in single
        if _devices(row["cell"]) > 256
    )
    shorter = [row for row in limited if row["limit_s"] != limit]
    proved, cells = (sum(int(row[name]) for row in shorter) for name in ("proven", "seeds"))
    again = [row for row in longest if int(row["seeds"]) > 1]
    spread = max(
        (100 * (float(row["most_ms"]) / float(row["least_ms"]) - 1) for row in again), default=0.0
    )
    return [
        f"At most {limit} CPU s a cell in one process on a shared machine "
        f"(`mapping.py --cpu --workers 1 --seconds {limit}`), and random topologies of one seed"
        + (
            f"; of a second in {len(again)} of the cells that were open, where the objective "
            f"differs by up to {spread:.2g} %"
            if again
            else ""
        )
        + ". *Proved of all runs*, then the most CPU seconds, or the worst gap where one is open.",
        "",
        *table("topology | p2p | all-reduce | both", rows),
        f"Cells of one seed with both terms after 60 CPU s: {inside} of "
        f"{len(small)} up to 256 devices are within 1 %, the largest gap is "
        f"{max(number(row['gap_percent']) for row in small):.2g} %. Beyond: {larger}. "
        f"After 2 CPU s a cell, 6 with both terms, {proved} of {cells} were proved. Cut and mapped "
        "together on 16 to 64 devices (`mapping_growth.py joint`), median and largest gap for "
        f"**all cuts**, and the gain over cutting first: {_joint_mapping()}. See [the "
        "decision](decisions/joint-mapping.md).",
    ]


def _closed(rows: Sequence[Row]) -> str:
    """Return how many runs of a topology and mode were proved, and how long or how far."""
    proved, runs = (sum(int(row[name]) for row in rows) for name in ("proven", "seeds"))
    if proved == runs:
        return f"{proved} of {runs}, {max(number(row['longest_s']) for row in rows)} s"
    return f"{proved} of {runs}, {max(number(row['worst_gap_percent']) for row in rows):.2g} %"


def _joint_mapping() -> str:
    """Return how near plans of cut and mapping together are, by topology."""
    table = read("joint_mapping")
    rows = [row | {"kind": row["topology"].partition(":")[0]} for row in table]
    found = []
    for (kind, slow), group in grouped(rows, "kind", "slow_half").items():
        gaps = [number(row["gap_percent"]) for row in group]
        gains = [100 * (1 - float(r["joint_ms"]) / float(r["in_turn_ms"])) for r in group]
        half = "" if number(slow) == 1 else ", half of the devices twice as slow"
        found.append(
            f"{kind}{half}: {percent(median(gaps))} and {percent(max(gaps))}, "
            f"ahead by up to {max(gains):.2g} %"
        )
    checked = max(number(row["check_cpu_seconds"]) for row in table)
    return (
        f"{'; '.join(found)}; `verify --bound` proves all {len(table)}, in {checked} CPU s at most"
    )


def _devices(cell: str) -> int:
    """Return the number of devices that a cell's name begins with."""
    return int(cell.partition(":")[2].split()[0])


def sharding() -> list[str]:
    rules = ("data_parallel", "fully_sharded", "megatron", "replicate")
    rows = []
    for (model, operators), group in grouped(read("sharding"), "model", "operators").items():
        cells = []
        for row in group:
            best = min(rules, key=lambda rule: number(row[rule]))
            ahead = abs(100 * (number(row[best]) / number(row["objective_ms"]) - 1))
            gap = percent(number(row["gap_percent"]))
            rule = best.replace("_", " ")
            cells.append(
                f"{row['objective_ms']} ms, {gap}, {row['cpu_seconds']} s; {ahead:+.1f} % ({rule})"
            )
        rows.append((model, operators, *cells))
    joined = read("joined")
    alone = ("pipeline_ms", "data_ms", "tensor_ms", "pipeline_and_data_ms")
    gains = [
        100 * (min(number(row[name]) for name in alone) / number(row["joined_ms"]) - 1)
        for row in joined
    ]
    ahead = [gain for gain in gains if gain > 0]
    runs = read("sharding_run_beta")
    near = sum(number(row["time_ms"]) <= 1.02 * number(row["best_beta_ms"]) for row in runs)
    cases = [row for row in read("sharding_random") if row["method"] == "auto"]
    return [
        *table("model | operators | 8 devices | 2 × 4 | 4 × 8", rows),
        f"Stages, replicas and tensor degree chosen together are {min(ahead):.1f} to "
        f"{max(ahead):.1f} % ahead of the best of pipeline, data and tensor parallelism in "
        f"{len(ahead)} of {len(joined)} cases, and equal in the others. On processes of this "
        "machine, plans for time are ahead of every β of DistPar's cost, or within 2 % of the "
        f"best, in {near} of {len(runs)} cases. `auto` proves "
        f"{sum(int(row['proved']) for row in cases):,} of "
        f"{sum(int(row['cases']) for row in cases):,} random programs optimal or infeasible, with "
        "and without a limit of memory.",
    ]


def job_layouts() -> list[str]:
    rows = read("job_layouts")
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for text in row["bytes_over_planned"].split("; "):
            axis, ratio = text.split()
            ratios[axis].append(float(ratio))
    loss, gradient = (max((row[f"{k}_error"] for row in rows), key=float) for k in ERRORS)
    resumed = read("job_resumed")
    exact = sum(row["state"] == "to the bit" for row in resumed)
    over = [float(row["more_percent"]) for row in read("job_run_overhead")]
    return [
        "",
        f"Training jobs of small models beside one process ({len(rows)} pairs of model and layout "
        f"on 2 to 8 processes, `job_layouts.py`): ten losses are off by {loss} at most, the first "
        f"step's gradients by {gradient}, relative to them. Bytes of collectives over those that "
        f"are planned: {', '.join(f'{a} {min(r):.2f} to {max(r):.2f}' for a, r in ratios.items())} "
        "([why](run.md#training-jobs)). "
        f"Of {len(resumed)} jobs that go on from a checkpoint under another layout {exact} have "
        "the same weights and moments to the bit; the next loss is off by "
        f"{max((row['loss_error'] for row in resumed), key=float)} at most. Steps of {len(over)} "
        f"jobs differ by {min(over):+.1f} to {max(over):+.1f} % from the same layouts by hand on "
        "torch's parts (`job_run_overhead.py`).",
    ]


def learned() -> list[str]:
    rows = [row for row in read("learned") if row["after"] == "5"]
    found = grouped(rows, "problem", "arm")
    arms = ("zero-shot", "fine-tuned", "greedy", "exact")
    lines = []
    for problem in dict.fromkeys(problem for problem, _ in found):
        cells = []
        for arm in arms:
            values = [number(row["median"]) for row in found[problem, arm]]
            worst = "no plan" if isinf(max(values)) else f"{max(values):.3f}"
            cells.append(f"{median(values):.3f} ({worst})")
        lines.append((problem, str(len(found[problem, "exact"])), *cells))
    placements = [number(row["placement_ms"]) for row in read("learned_times")]
    return [
        *table("problem | workloads | " + " | ".join(arms), lines),
        f"Drawing a placement takes {min(placements)} to {max(placements)} CPU ms. Longer runs of "
        "one workload per problem, up to 300 s, are in `learned_longer.csv`, "
        "[policies that draw alone](learned.md) in `learned_policies.csv`.",
    ]


def runtime() -> list[str]:
    models = [row for row in read("import") if row["pass"] == "training"]
    speed = read("simulator_speed")[-1]
    error = max(number(row["relative_error"]) for row in read("simulator_load"))
    medians = {
        name: median(number(row["iteration_ms"]) for row in group)
        for table_name, column in (("run_planned", "split"), ("run_overhead", "way"))
        for (name,), group in grouped(read(table_name), column).items()
    }
    off = {
        name: 100 * (number(group[0]["predicted_ms"]) / medians[name] - 1)
        for (name,), group in grouped(read("run_planned"), "split").items()
    }
    over = 100 * (medians["plan"] / medians["by hand"] - 1)
    planned, equal = medians["planned"], medians["equal layer counts"]
    orders = [
        row for row in read("schedules") if number(row["optimal"]) < number(row["zb_h1"]) - 1e-9
    ]
    counts = [number(row["flops_of_counter_percent"]) for row in models]
    kept = [number(row["saved_of_hooks_percent"]) for row in models]
    seconds = [number(row["import_seconds"]) for row in models]
    gains = [number(row["operators_speedup"].removesuffix("×")) for row in models]
    return [
        f"{len(models)} training graphs of PyTorch models have {_between(counts)} "
        f"% of the FLOPs that torch's counter finds, and {min(kept):g} to {max(kept):g} % of the "
        f"bytes that its hooks see saved (`import_models.py`); the import takes {min(seconds)} to "
        f"{max(seconds)} s, and a plan on four devices is {min(gains)} to {max(gains)} times as "
        "fast as one device.",
        "",
        f"The simulator takes {number(speed['tasks']) / 1e6:.1f} million tasks in "
        f"{speed['cpu_seconds']} CPU s; in the steady state its time per microbatch is the "
        f"max-load up to {error:.0e} (`simulator.py`). An exact schedule is shorter than ZB-H1 in "
        f"{len(orders)} of {len(read('schedules'))} small cases. On two processes a planned split "
        f"of an uneven model takes {planned:.0f} ms, equal layer counts {equal:.0f}; predicted "
        f"before any run {off['planned']:+.1f} and {off['equal layer counts']:+.1f} % off "
        f"(`run_planned.py`). A step by a plan differs by {over:+.1f} % from the same split by "
        "hand on torch's pipelining (`run_overhead.py`). [Its own loop](decisions/one-loop.md) and "
        "[DTensor](decisions/dtensor.md) were measured, too.",
        *job_layouts(),
        *cold_start(),
    ]


def cold_start() -> list[str]:
    together = next(row for row in read("first_plan") if row["step"] == "together")
    rows = [row for row in read("cold_start") if row["second_cpu_seconds"]]
    slow = sorted(
        rows, key=lambda r: number(r["second_cpu_seconds"]) - number(r["first_cpu_seconds"])
    )
    alone = [row for row in read("cold_start") if not row["second_cpu_seconds"]]
    longest = "; ".join(
        f"{row['case']} {row['first_cpu_seconds']}, then {row['second_cpu_seconds']}"
        for row in slow[:3]
    )
    return [
        "",
        "CPU seconds of the first call on a machine, with no compiled kernels in its cache, and of "
        f"the next one (`cold_start.py`, `first_plan.py`, [whose compiler]"
        f"(decisions/own-compiler.md)): {longest}. These compile longest; the other "
        f"{len(rows) - 3} take "
        f"{max(number(row['first_cpu_seconds']) for row in slow[3:]):g} at most. "
        + ", ".join(f"{row['case']} {row['first_cpu_seconds']}" for row in alone)
        + f". From a fresh clone to the first plan of an own model: "
        f"{together['wall_seconds']} s, packages in pip's cache. `stagecut warm` compiles ahead.",
    ]


def certificates() -> list[str]:
    random = read("random_cases")
    cases, results, optimal, infeasible = (
        sum(int(row[name] or 0) for row in random)
        for name in ("cases", "results", "optimal", "infeasible")
    )
    attacks = read("attacks")
    refused, harmless, defects = (
        sum(int(row[name]) for row in attacks) for name in ("refused", "harmless", "defects")
    )
    wrong = sum(int(row["wrong"]) for row in random)
    checks = read("bound_checks")
    checked, total = (sum(int(row[name]) for row in checks) for name in ("checked", "of"))
    longest = max(number(row["check_longest_seconds"]) for row in checks)
    lies = read("lying_solver")
    high = [row for row in lies if number(row["bound_over_objective"]) > 1]
    return [
        f"On {cases:,} random small cases ({', '.join(row['problem'] for row in random)}) every "
        f"method was held against brute force (`random_cases.py`): {results:,} results, "
        f"{optimal:,} of them *optimal* and {infeasible:,} *infeasible*, of which {wrong} are "
        "wrong: no bound above the optimum, no claim that does not hold.",
        "",
        "Of damaged files, odd options, changed plans and forged certificates "
        "(`damaged_files.py`, `nonsense_options.py`, `forged_plans.py`) "
        f"{refused:,} were refused and {harmless:,} harmless, {defects} showed a defect. `verify "
        f"--bound` checks {checked} of {total} bounds of contiguous splits by all chains of "
        f"stages, in {longest:.0f} s at most (`check_chains.py`). A solver that lies to "
        f"{len({row['driver'] for row in lies})} drivers of integer programs in "
        f"{len({row['lie'] for row in lies}) - 1} ways brings about {len(high)} bounds above the "
        "objective of a plan (`lying_solver.py`). [Do tests see bounds that are too high?]"
        "(decisions/faults.md)",
    ]


def rivals() -> list[str]:
    """Return how far published layouts and usual choices are behind the planner's."""
    priced = [row for row in read("job_rivals") if row["behind"] and row["rival"] != "planned"]
    fitting = [row for row in priced if row["fits"] == "1"]
    lines = []
    for name in dict.fromkeys(row["rival"].partition(" for ")[0] for row in priced):
        of_name = [row for row in priced if row["rival"].partition(" for ")[0] == name]
        behind = [100 * number(row["behind"]) for row in of_name if row["fits"] == "1"]
        inside = [
            100 * number(row["behind"])
            for row in of_name
            if row["fits"] == "1" and not row["outside"]
        ]
        lines.append(
            [
                name,
                str(len(of_name)),
                str(len(behind)),
                f"{min(inside):.1f} %" if inside else "",
                f"{median(behind):.1f} %" if behind else "",
                f"{max(behind):.0f} %" if behind else "",
            ]
        )
    ahead = [row for row in fitting if number(row["behind"]) < -1e-3]
    beyond = sum(bool(row["outside"]) for row in ahead)
    header = "layout|priced|fit|least behind, inside the space|behind in the median|at most"
    return [
        *table(header, lines),
        f"Of {len(fitting)} that fit, {len(ahead)} are ahead of the planner's by more than 0.1 %, "
        f"{beyond} of them outside of the declared space.",
    ]


def jobs() -> list[str]:
    """Return the tables of training jobs: gaps by model, choices among measured layouts, peers."""
    rows = read("jobs")
    lines = []
    kinds = [
        row | {"kind": "mixtures of experts" if row["model"] in MIXTURES else "dense"}
        for row in rows
    ]
    for (kind,), cases in grouped(kinds, "kind").items():
        planned = [row for row in cases if row["gap"]]
        gaps = [number(row["gap"]) for row in planned]
        points = [sum(number(row[name]) for name in REASONS) for row in planned]
        lines.append(
            [
                f"{kind}: {', '.join(dict.fromkeys(row['model'] for row in cases))}",
                str(len(cases)),
                f"{len(cases) - len(planned)}",
                percent(100 * max(gaps)),
                f"{min(points):,.0f} to {max(points):,.0f}",
                f"{max(number(row['solved']) for row in planned):.0f}",
                f"{max(number(row['cpu_s']) for row in cases):.1f}",
                f"{max(number(row['wall_s']) for row in cases):.1f}",
            ]
        )
    header = (
        "models|jobs|nothing fits|largest gap|outer points|programs at most"
        "|CPU s at most|seconds at most"
    )
    found = table(header, lines)
    sweeps = [row for row in read("job_sweeps") if row["regret"]]
    regrets = sorted(100 * number(row["regret"]) for row in sweeps)
    within = sum(regret <= 3 for regret in regrets)
    found += [
        f"Among the measured layouts of {len(sweeps)} sweeps (one model, cluster, batch, precision "
        f"and software each) the estimate's choice is {median(regrets):.1f} % slower than the "
        f"best measured in the median, {regrets[-1]:.1f} % at most, and within 3 % in {within}. "
        "The best of at most three that it cannot separate, those within 5 %, is "
        f"{max(100 * number(row['close_regret']) for row in sweeps):.1f} % slower at most.",
    ]
    found += rivals()
    faster = [float(row["calculon_cpu_s"]) / float(row["cpu_s_here"]) for row in read("calculon")]
    behind = [100 * float(row["calculon_behind"]) for row in read("calculon")]
    found[-1] += (
        f" Calculon's search of its own space takes {min(faster):.0f} to {max(faster):.0f} times "
        f"as long as the one here, and its layouts are {min(behind):.1f} to {max(behind):.1f} % "
        f"behind ([cases](validation.md#beside-other-estimators)). {two_kinds()}"
    )
    return [*found, "", *random_jobs()]


def two_kinds() -> str:
    """Return what jobs on nodes of two kinds gain."""
    rows = read("job_kinds")
    alone = [row for row in rows if row["faster_alone_s"]]
    gains = [100 * (1 - number(r["iteration_s"]) / number(r["faster_alone_s"])) for r in alone]
    models = ", ".join(dict.fromkeys(row["model"] for row in rows))
    gap = percent(100 * max(number(row["gap"]) for row in rows))
    return (
        f"On nodes of two kinds ({len(rows)} cells: {models}) the best layout takes "
        f"{min(gains):.0f} to {max(gains):.0f} % less than on the first kind alone; the gap is "
        f"{gap} at most, after {max(number(row['cpu_s']) for row in rows)} CPU s at most; "
        f"`verify --bound` solves {max(int(row['programs']) for row in rows)} programs at most."
    )


def random_jobs() -> list[str]:
    """Return what random jobs against all their plans showed."""
    families = {row["family"]: row for row in read("job_cases")}
    every = families.pop("all")
    return [
        f"Of {every['jobs']} random jobs ({', '.join(families)}) {every['feasible']} have a plan, "
        f"and {every['open']} keep a gap; {every['wrong_optimum']} optima are wrong, "
        f"{every['bound_above']} bounds above the optimum, {every['refused']} refused by `verify`. "
        f"Of {int(every['points']):,} outer points {every['point_above']} bounds are above the "
        f"point's best plan, and {every['wrongly_refuted']} points wrongly refuted.",
    ]


def gpu_costs() -> list[str]:
    """Return kernels by family and ranks of jobs by kind, predicted over measured."""
    families = {
        "attention": "attention", "attention by cuDNN": "attention",
        "experts": "experts", "product": "matrix products",
    }  # fmt: skip
    kernels = [
        row | {"kind": families.get(row["what"].split(",")[0], OTHER_KERNELS)}
        for row in read("gpu_kernels")
    ]
    lines = []
    for (kind,), own in grouped(kernels, "kind").items():
        columns = ("predicted_us", "megatron_us")
        ours, megatron = (
            [100 * (number(row[column]) / number(row["measured_us"]) - 1) for row in own]
            for column in columns
        )
        lines.append([kind, str(len(own)), *_spread(ours), f"{median(megatron):+.0f} %", ""])
    mixtures = ("mixtral", "qwen3-30b", "deepseek")
    ranks = [
        row | {"kind": "mixtures of experts" if row["model"].startswith(mixtures) else "dense"}
        for row in read("gpu_ranks")
    ]
    for (kind,), own in grouped(ranks, "kind").items():
        times, peaks = [], []
        for row in own:
            said, seen = (
                number(row[f"{which}_forward_s"]) + number(row[f"{which}_backward_s"])
                for which in ("predicted", "measured")
            )
            times.append(100 * (said / seen - 1))
            peaks.append(
                100 * (number(row["predicted_peak_gib"]) / number(row["measured_peak_gib"]) - 1)
            )
        peak = f"{median(peaks):+.1f} % ({min(peaks):+.1f} to {max(peaks):+.1f})"
        lines.append([f"ranks: {kind}", str(len(own)), *_spread(times), "", peak])
    header = "what|cases|median of predicted / measured − 1|range|by Megatron's table|peak memory"
    return [*table(header, lines), "", *trained_layouts()]


def _between(values: Sequence[float]) -> str:
    """Return the least and the largest of some numbers, once if they are one."""
    least, most = f"{min(values):g}", f"{max(values):g}"
    return least if least == most else f"{least} to {most}"


def trained_layouts() -> list[str]:
    """Return by model how layouts that were trained compare with what the costs say of them."""
    lines = []
    for (model,), own in grouped(read("gpu_layouts"), "model").items():
        said, seen = ([number(row[f"{of}_s"]) for row in own] for of in ("predicted", "measured"))
        times = [100 * (a / b - 1) for a, b in zip(said, seen, strict=True)]
        peaks = [
            100 * (number(row["predicted_peak_gib"]) / number(row["measured_peak_gib"]) - 1)
            for row in own
        ]
        behind = 100 * (seen[said.index(min(said))] / min(seen) - 1)
        lines.append(
            [
                model,
                str(len(own)),
                f"{max(seen) / min(seen):.1f}",
                *_spread(times),
                f"{spearmanr(said, seen).statistic:.2f}",
                f"{behind:.1f} %" if behind else "none",
                f"{min(peaks):+.1f} to {max(peaks):+.1f} %",
            ]
        )
    return table(
        "model|layouts|slowest / fastest|median of predicted / measured − 1|range|rank correlation|"
        "fastest by the costs, behind the fastest|peak memory",
        lines,
    )


def _spread(errors: Sequence[float]) -> tuple[str, str]:
    """Return the median and the range of errors in percent."""
    return f"{median(errors):+.0f} %", f"{min(errors):+.0f} to {max(errors):+.0f} %"


def solver_end(row: Row) -> str:
    """Return the seconds to a proof within 1e-6, the gap at the limit, or why there is neither."""
    if row["end"] not in ("optimal", "feasible"):
        return row["end"]
    gap = float(row["gap"].removesuffix("%"))
    if gap <= 1e-4:
        return f"{float(row['seconds']):.1f} s"
    return "no bound" if gap == float("inf") else f"{gap:.{1 if gap < 10 else 0}f} %"


def launchers() -> str:
    """Return by package how many exported layouts it trained, and how near to one process."""
    found = []
    for (package,), group in grouped(read("launchers"), "package").items():
        trained = [row["difference"] for row in group if row["difference"]]
        most = max(trained, key=float)
        found.append(
            f"{package} {len(trained)} of {len(group)}, losses within {most} of one process's"
        )
    return "; ".join(found)


def exports() -> list[str]:
    """Return which launchers took plans, by model, and why others take none."""
    rows = read("exports")
    names = list(dict.fromkeys(row["launcher"] for row in rows))
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for (model,), group in grouped(rows, "model").items():
        taken = {row["launcher"]: _taken(row) for row in group}
        alike[tuple(taken.get(name, "") for name in names)].append(model)
    lines = [[", ".join(models), *cells] for cells, models in alike.items()]
    return [
        *table("model|" + "|".join(names), lines),
        "Small models trained by exported layouts with the launchers' own code, on CPUs and gloo "
        f"(`launcher_training.py`): {launchers()}.",
    ]


def _taken(row: Row) -> str:
    """Return which of two plans a launcher took."""
    own, plain = (row[key] == "exported" for key in ("plan for it", "plan for none"))
    return "both" if own and plain else "its own" if own else "any" if plain else "none"


def solvers() -> list[str]:
    """Return programs in two forms by solver, and random cases against brute force."""
    rows = read("solvers")
    names = list(dict.fromkeys(row["solver"] for row in rows))
    lines = []
    for (problem, instance), group in grouped(rows, "problem", "instance").items():
        if problem == "sharding":  # small: each solver proves either form at once
            continue
        ends = grouped(group, "solver")
        cells = ["; ".join(solver_end(row) for row in ends[name,]) for name in names]
        forms = "; ".join(dict.fromkeys(row["form"] for row in group))
        lines.append([f"{problem}, {instance}", forms, *cells])
    small = max(float(row["seconds"]) for row in rows if row["problem"] == "sharding")
    random = read("solvers_random")
    wrong = sum(int(row["wrong"]) for row in random)
    return [
        *table("program|two forms|" + "|".join(names), lines),
        f"Programs of shardings of 7 and 11 operators take {small:.1f} s at most in either form. "
        f"Of {sum(int(row['cases']) for row in random):,} runs on random cases of "
        f"{', '.join(dict.fromkeys(row['problem'] for row in random))} by "
        f"{len({row['solver'] for row in random})} solvers, each without and with a random "
        f"constraint, {wrong} answers are wrong.",
    ]


SECTIONS = (
    Section(
        "Training jobs",
        "Published models on 8 to 16,384 A100s, H100s and B200s under a launcher (`jobs.py`): the "
        "best layout of the declared space, to a gap of 0.1 %, at most 60 s. Choices among "
        "measured layouts (`job_sweeps.py`), published layouts and what is usually chosen "
        "(`job_rivals.py`), and Calculon's exhaustive search (`peers_calculon.py`), both priced "
        "here. Nodes of two kinds (`job_kinds.py`). Random small jobs against all their plans one "
        "by one, every outer point's bound too (`job_cases.py`; families overlap). See "
        "[training jobs](job.md), and what [degrees by stage](decisions/degrees-by-stage.md) and "
        "[uneven chunks](decisions/uneven-chunks.md) save.",
        (
            "jobs",
            "job_sweeps",
            "job_rivals",
            "calculon",
            "job_kinds",
            "job_degrees",
            "job_chunks",
            "job_cases",
        ),
        jobs,
    ),
    Section(
        "Costs on a GPU",
        "Kernels as training calls them, back to back, inputs random and not in the cache, beside "
        "what the costs say by this project's own table, which every second row was fitted on, and "
        "by Megatron's; products are 200 of the shipped descriptions at tensor degrees 1 to 8. "
        "Then one rank of jobs with a few blocks of a model, by torch's fake process group: what "
        "ranks send is left out of both. Then whole models, trained on an H200 by every microbatch "
        "and recomputation (`gpu_costs.py`; rows that judge the fit: `gpu_fit.py`). See [what it "
        "taught](validation.md#held-against-a-gpu).",
        ("gpu_kernels", "gpu_ranks", "gpu_layouts"),
        gpu_costs,
    ),
    Section(
        "Throughput",
        "The published workloads (Tarnawski et al., NeurIPS 2020): contiguous by the dynamic "
        "program over ideals (`dp.py table`), non-contiguous by `auto`, asked for 0.1 %, one "
        "process on a quiet core (`noncontiguous.py --gap 0.001`). Seconds from the start of the "
        "process for non-contiguous splits. Baselines had 4 s (`stagecut compare`).",
        (
            "contiguous",
            "ideals_growth",
            "noncontiguous",
            "noncontiguous_variants",
            "baselines",
            "workers",
            "milp_gap",
            "milp_build",
            "traced_models",
            "traced_gaps",
            "large_graphs",
            "cluster_loss",
        ),
        throughput,
    ),
    Section(
        "Latency",
        "One request, one or two calls per accelerator; seconds of a whole process on one core, "
        "imports counted (`latency.py`). Heuristics: `greedy`, `max-load`, `linear`. See [values "
        "of the published heuristics](decisions/published-heuristics.md).",
        ("latency", "latency_calls"),
        latency,
    ),
    Section(
        "Iterations",
        "Shipped training workloads on K accelerators of 80 GB, M = K, 4K and 16K microbatches; "
        "`auto` for contiguous splits within 20 s (interleaved 60 s) or 0.1 % (`iteration.py`). "
        "*Met of all feasible cells, the largest gap, the median of seconds.* Other plans are "
        "defaults of frameworks and contiguous splits of least max-load; medians. "
        "[What the gap of interleaved schedules is](decisions/interleaved-gap.md).",
        (
            "iteration",
            "iteration_published",
            "run_iteration",
            "pipeline_versions",
        ),
        iterations,
    ),
    Section(
        "Mapping",
        "The published protocol: seven topologies × 12 (stages, replicas), κ = 0, rings "
        "(`mapping.py`). See [the parts of the strategy](decisions/mapping-strategy.md).",
        ("mapping_open", "mapping_limits", "joint_mapping"),
        mapping,
    ),
    Section(
        "Sharding",
        "Milliseconds of a plan, its gap, CPU seconds of `auto`, and how much longer the best of "
        "the rules takes (`sharding.py models`; runs: `sharding_run.py`, `joined_run.py`).",
        (
            "sharding",
            "joined",
            "joined_run",
            "sharding_random",
            "sharding_placement",
            "sharding_run_beta",
            "sharding_run_layers",
            "sharding_run_faces",
        ),
        sharding,
    ),
    Section(
        "Learned placement",
        "Objective over the best proved bound after 5 CPU s: median over the workloads, largest in "
        "brackets (`learned.py measure`); none of them was in training. See "
        "[what limits learning](decisions/learning-steps.md).",
        (
            "learned",
            "learned_ten",
            "learned_longer",
            "learned_times",
            "learned_policies",
            "learned_curve",
        ),
        learned,
    ),
    Section(
        "Runtime",
        "",
        (
            "import",
            "simulator_speed",
            "simulator_load",
            "schedules",
            "run_planned",
            "run_overhead",
            "dtensor_operators",
            "executors",
            "job_run_overhead",
            "job_layouts",
            "job_resumed",
            "cold_start",
            "first_plan",
        ),
        runtime,
    ),
    Section(
        "Exports",
        "Plans of ten models by launcher (`exports.py`): whether a plan that was made for no "
        "launcher is taken, and one that was made for it (`solve … --for`): both, its own alone, "
        "any where there is no `--for`, or none (`exports.csv` has all reasons, `launchers.csv` "
        "where a launcher's code ends). See [plans for other launchers](export.md).",
        ("exports", "launchers"),
        exports,
    ),
    Section(
        "Solvers",
        "Programs of `stagecut.formulation` by solver (`solvers.py`): seconds to a proof within "
        "1e-6, or the gap after 10 s; random small cases against brute force. See "
        "[formulations](formulations.md).",
        ("solvers", "solvers_random", "first_model"),
        solvers,
    ),
    Section(
        "Certificates",
        "",
        ("random_cases", "attacks", "bound_checks", "lying_solver"),
        certificates,
    ),
)


def page() -> str:
    """Return the page."""
    lines = [
        "# Benchmarks",
        "",
        "<!-- made by benchmarks/page.py from benchmarks/results: change those -->",
        "",
        "Measured with the present version; every row of `benchmarks/results/*.csv` has its "
        "revision, seed, date, machine and versions of packages. Times are seconds on the clock "
        "unless said otherwise, kernels compiled before, one thread. Programs named here are in "
        "`benchmarks/`. What was tried and left out is in [decisions](decisions/index.md), and "
        "[what each part of `auto` is worth](decisions/ablation.md).",
    ]
    lines += written(SECTIONS)
    return markdown(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
