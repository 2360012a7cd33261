"""Every method against brute force on random small cases: is anything ever wrong?

Prints a CSV row per variant of a problem and method: how many cases the method was asked, how often
it gave each answer (`WORDS` in tests/support/sweep.py; `DEFECTS` among them must be 0), and the
seeds of the defects. Each case is a line of the records file, so a stopped run continues where it
was. This runs a single case again, with details:

    python benchmarks/random_cases.py --only "BIG 1e+08 transfers" --seed 17 [--method milp]

The whole sweep has 3,000 ordinary cases per problem, and at least 500 of each variant:

    python benchmarks/random_cases.py --records records.jsonl --workers 2 > table.csv

This runs every solver by name, whatever calls it, on cases with numbers of 1e3 to 1e17 and with
incumbents of 1, 1.3 and 3 times the optimum, and compares every claim with the optimum:

    python benchmarks/random_cases.py --solvers --records solvers.jsonl > table.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from every_solver import incumbent_of, solvers_of, worst
from sweep import DEFECTS, ORDINARY, RANGES, VARIANTS, WORDS, ask, case_of, methods_of

#: Cases: 3,000 of each problem's ordinary variants together, and at least 500 of every variant.
OF_PROBLEM, OF_RANGE = 3000, 500


def examine(variant: str, seed: int, names: list[str] | None, solvers: bool) -> dict[str, object]:
    """Return the record of one case: what each method, or each solver, said of it."""
    case = case_of(variant, seed)
    optimum = case.optimum()
    incumbent = incumbent_of(case) if solvers else None
    words = {}
    for name in solvers_of(case) if solvers else methods_of(case):
        if names is None or name in names:
            word = worst(case, name, optimum, incumbent) if solvers else ask(case, name, optimum)
            words[name] = [word.word, word.detail] if word.word in DEFECTS else [word.word]
    return {"variant": variant, "seed": seed, "words": words}


def examined(
    cases: list[tuple[str, int]], methods: list[str] | None, workers: int, *, solvers: bool
) -> Iterator[dict[str, object]]:
    """Yield the records of all cases, as they come; a case that ends its process is a defect."""
    while cases:
        lost = set()
        for case, record in _pooled(cases, methods, workers, solvers=solvers):
            if record is None:
                lost.add(case)
            else:
                yield record
        cases = [case for case in cases if case in lost]
        for case in cases[: 2 * workers]:  # one of those that ran has ended its process
            for (variant, seed), record in _pooled([case], methods, 1, solvers=solvers):
                words = {"process": ["exception", "the process ended"]}
                yield record or {"variant": variant, "seed": seed, "words": words}
        cases = cases[2 * workers :]


def _pooled(
    cases: list[tuple[str, int]], methods: list[str] | None, workers: int, *, solvers: bool
) -> Iterator[tuple[tuple[str, int], dict[str, object] | None]]:
    """Yield cases and their records; None once a process has ended."""
    with ProcessPoolExecutor(workers) as pool:
        futures = {pool.submit(examine, *case, methods, solvers): case for case in cases}
        for future in as_completed(futures):
            lost = isinstance(future.exception(), BrokenProcessPool)
            yield futures[future], None if lost else future.result()


def table(records: Iterable[dict[str, object]]) -> list[list[object]]:
    """Return the table's rows: counts per variant and method, and the seeds of the defects."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    seeds: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for method, (word, *_) in record["words"].items():
            key = record["variant"], method
            counts.setdefault(key, Counter())[word] += 1
            if word in DEFECTS:
                seeds.setdefault(key, []).append(str(record["seed"]))
    return [
        [*key, sum(count.values()), *(count[word] for word in WORDS), " ".join(seeds.get(key, []))]
        for key, count in counts.items()
    ]


def main() -> None:
    """Run the sweep, or one case again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="variants whose names begin so")
    parser.add_argument("--method", action="append", help="only these methods or solvers")
    parser.add_argument("--solvers", action="store_true", help="every solver by name")
    parser.add_argument("--seed", type=int, help="one case of each variant, with details")
    parser.add_argument("--part", type=float, default=1.0, help="of the full number of cases")
    parser.add_argument("--records", type=Path, default=Path("random-cases.jsonl"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    known_variants = RANGES if options.solvers else VARIANTS
    chosen = [name for name in known_variants if any(map(name.startswith, options.only or [""]))]
    if options.seed is not None:
        for name in chosen:
            print(
                json.dumps(examine(name, options.seed, options.method, options.solvers), indent=1)
            )
        return
    records = []
    if options.records.exists():
        records = [json.loads(line) for line in options.records.read_text().splitlines()]
    known = {(record["variant"], record["seed"]) for record in records}
    problems = Counter(name.split()[0] for name in ORDINARY)
    sizes = {
        name: int(
            options.part
            * max(OF_RANGE, OF_PROBLEM // problems[name.split()[0]] if name in ORDINARY else 0)
        )
        for name in chosen
    }
    # seed by seed, so that a run that is stopped has seen some of everything
    cases = [
        (name, seed)
        for seed in range(max(sizes.values()))
        for name in chosen
        if seed < sizes[name] and (name, seed) not in known
    ]
    with options.records.open("a") as file:
        found = examined(cases, options.method, options.workers, solvers=options.solvers)
        for record in found:
            print(json.dumps(record), file=file, flush=True)
            records.append(record)
    writer = csv.writer(sys.stdout)
    writer.writerow(["variant", "method", "cases", *WORDS, "seeds"])
    writer.writerows(table(records))


if __name__ == "__main__":
    main()
