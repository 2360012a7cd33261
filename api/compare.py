"""Methods against each other: every workload, problem and method as a row of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from ..instances import InputError
from ..instances.formats.escape import csv
from ..instances.formats.files import load, load_cluster
from ..instances.formats.source import Record
from ..instances.formats.writing import write_whole
from ..instances.model.errors import quote
from ..solvers import method_of

#: Endings of the record beside a table, and of its damaged lines.
RECORD, DAMAGED = ".jsonl", ".damaged"

#: Seconds that a case may run past its time limit before its process is killed.
GRACE_S = 30.0


@dataclass(frozen=True)
class Case:
    """One workload, one method, one set of options of `stagecut solve`.

    Parameters
    ----------
    name
        What the table calls the workload; no two of a comparison share one.
    workload
        A file, or the name of a shipped workload.
    fingerprint
        Of the workload, and of the cluster file if one is given, so that a changed file is solved
        again.
    method
        Of `stagecut solve`.
    options
        Further options, as typed.
    time_limit
        Seconds.
    """

    name: str
    workload: str
    fingerprint: str
    method: str
    options: tuple[str, ...]
    time_limit: float

    @property
    def key(self) -> str:
        """What tells the case from others, as text."""
        return json.dumps(asdict(self), sort_keys=True)

Named = TypeVar("Named")

#: What a case came to, by column.
Row = dict[str, Any]


def cases(
    workloads: Sequence[str],
    methods: Sequence[str],
    options: Sequence[str],
    time_limit: float,
    *,
    cluster: Path | None = None,
) -> list[Case]:
    """Return every workload with every method.

    Parameters
    ----------
    workloads, methods
        What to compare.
    options, time_limit
        Of every case.
    cluster
        A cluster file for all; default: what each workload suggests.

    Raises
    ------
    InputError
        If a workload or the cluster cannot be loaded, a method does not exist, or nothing is to be
        compared.
    """
    if not workloads or not methods:
        raise InputError("compare: give at least one workload and one method")
    for method in methods:
        method_of("throughput", method)  # raises if there is none
    devices = ""
    if cluster is not None:
        devices = f" on {load_cluster(cluster).fingerprint}"
        options = [*options, "--cluster", str(cluster)]
    prints = {name: load(name).fingerprint + devices for name in workloads}
    called = unique_names(list(prints))
    return [
        Case(called[name], name, prints[name], method, tuple(options), time_limit)
        for name in prints
        for method in methods
    ]


def unique_names(workloads: Sequence[str]) -> dict[str, str]:
    """Return a short name for each path: its stem, with as many folders as tell it from others.

    Examples
    --------
    >>> unique_names(["a/net.json", "b/net.json", "b/big.json"])["b/net.json"]
    'b/net'
    """
    names = {}
    for path in workloads:
        parts = Path(path).with_suffix("").parts
        for length in range(1, len(parts) + 1):
            tail = parts[-length:]
            alike = [p for p in workloads if Path(p).with_suffix("").parts[-length:] == tail]
            names[path] = "/".join(tail)
            if len(alike) == 1:
                break
    return names


def run_case(case: Case) -> Row:
    """Run one case in a process of its own and return its row; a crash is an outcome too."""
    command = [sys.executable, "-m", "stagecut", "solve", case.workload, "--json", "--trace"]
    command += ["--method", case.method, "--time-limit", str(case.time_limit), *case.options]
    # The child finds the package where this process found it.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    row: Row = {"workload": case.name, "method": case.method}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            timeout=case.time_limit + GRACE_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**row, "status": "killed", "error": f"ran {GRACE_S:g} s past its time limit"}
    if done.stdout.startswith("{"):
        answer = json.loads(done.stdout)
        kept = ("objective", "bound", "gap", "status", "limit", "seconds", "verified", "trace")
        return row | {key: answer[key] for key in kept} | {"found_by": answer["method"]}
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return {**row, "status": "crashed", "error": f"exit code {done.returncode}: {lines[-1]}"}


def compare(
    workloads: Workload | str | Path | Sequence[Workload | str | Path] | Mapping[str, Workload],
    problems: Problem | Sequence[Problem] | Mapping[str, Problem] | None = None,
    methods: str | Sequence[str] = "auto",
    *,
    cluster: Cluster | None = None,
    limits: Limits | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> pd.DataFrame:
    """Solve every problem on every workload with every method that it has, one after the other.

    Parameters
    ----------
    workloads
        One or several, each a workload, its file, or the name of a shipped one; a dictionary
        says what the table calls them.
    problems
        One or several, of any kind; a dictionary says what the table calls them. Default: for
        each workload the one that `solve` takes.
    methods
        One or several of `stagecut.METHODS`. A problem is not solved by methods of others.
    cluster, limits
        As in `solve`, for each case.
    on_row
        Called with every row.

    Returns
    -------
    pandas.DataFrame
        One row per case: workload, problem, method; status, limit, objective, bound, gap and
        seconds as of its `Result`; ratio, the objective over the best bound for the workload
        and problem; verified; found_by, the method that found the plan; error, if it was one;
        trace, a list of (seconds, objective, bound); and plan.

    Raises
    ------
    InputError
        If there is nothing to compare, a method does not exist, or two workloads or problems
        have one name.

    Examples
    --------
    >>> problems = [Throughput(), Throughput(split="contiguous")]
    >>> table = compare("gpt2-xl", problems, ["single", "greedy"])
    >>> table[["problem", "method", "status"]]
                            problem  method    status
    0                    throughput  single  feasible
    1                    throughput  greedy  feasible
    2  throughput, split=contiguous  single  feasible
    3  throughput, split=contiguous  greedy  feasible
    """
    named = _named_workloads(workloads)
    asked = _named_problems(problems)
    wanted = [methods] if isinstance(methods, str) else list(methods)
    if not named or not wanted:
        raise InputError("compare: give at least one workload and one method")
    cases = [
        (name, workload, label, problem, method)
        for name, workload in named.items()
        for label, problem in (asked or _own_problem(workload)).items()
        for method in wanted
        if method in METHODS[problem.name]
    ]
    for method in wanted:
        if not any(case[-1] == method for case in cases):
            kinds = {case[3].name for case in cases} or set(METHODS)
            known = sorted({other for kind in kinds for other in METHODS[kind]})
            raise InputError(f"compare: no method {method!r}; use one of {', '.join(known)}")
    rows = []
    for name, workload, label, problem, method in cases:
        row: Row = {"workload": name, "problem": label, "method": method}
        try:
            result = solve(workload, cluster, problem, method=method, limits=limits)
            row |= _row(workload, problem, result)
        except StagecutError as error:
            row |= {"status": "error", "error": str(error)}
        rows.append(row)
        if on_row is not None:
            on_row(row)
    table = tabulate(rows)
    table["plan"] = [row.get("plan") for row in rows]
    return table


def _named_workloads(
    workloads: Workload | str | Path | Sequence[Workload | str | Path] | Mapping[str, Workload],
) -> dict[str, Workload]:
    if isinstance(workloads, Mapping):
        return dict(workloads)
    several = [workloads] if isinstance(workloads, Workload | str | Path) else workloads
    loaded = [one if isinstance(one, Workload) else load(one) for one in several]
    return _by_name([(workload.name, workload) for workload in loaded], "workloads")


def _run_on_dask(todo: Sequence[Case], scheduler: str) -> Iterator[tuple[Case, Row]]:
    try:
        from distributed import Client
        from distributed import as_completed as as_finished
    except ImportError:
        raise InputError(
            "--scheduler: dask is not installed; pip install 'stagecut[cluster]'"
        ) from None
    try:
        client = Client(scheduler, timeout="20s")
    except (OSError, TimeoutError, ValueError, AssertionError) as error:  # dask asserts addresses
        reason = str(error) or type(error).__name__
        raise InputError(
            f"--scheduler: no Dask scheduler answers at {quote(scheduler)}: {reason}"
        ) from None
    with client:
        futures = {client.submit(run_case, case, key=case.key, pure=False): case for case in todo}
        for future in as_finished(list(futures)):
            yield futures[future], future.result()
