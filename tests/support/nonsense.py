"""Every option of every command with values that make no sense: code 2 and one line."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import typer.main

from stagecut import Throughput, Workload, accelerators_and_cpus, cli, save, solve
from stagecut.api.compare import Case, Row
from stagecut.api.records import InstanceRecord, submit_record

NONSENSE = [
    "", " ", "-1", "0", "-0", "nan", "inf", "-inf", "1e999", "1e-400", "9" * 30, "-" + "9" * 30,
    "0x10", "1.5", "1,2", "x", "None", "true", "[]", "{}", "{0}", "%s", "$(id)", "../..", "/", ".",
    "\n", "\x1b[31m", "\u2028", "½", "x" * 5000, "a\0b",
]  # fmt: skip


#: The command line as it is, but made once.
COMMANDS: Any = typer.main.get_command(cli.app)


@dataclass(frozen=True)
class Outcome:
    """What a command did: its exit code, and whether all is as it should be."""

    code: int
    defect: str = ""


def commands(folder: Path) -> dict[str, list[str]]:
    """Return each command with arguments that work, its files in `folder`."""
    workload = Workload(
        name="small",
        ids=tuple(range(4)),
        edges=np.array([(0, 1), (1, 2), (2, 3)]),
        times={"accelerator": np.arange(1.0, 5.0), "cpu": np.arange(2.0, 6.0)},
        memory_bytes=np.ones(4),
        transfer=np.full(4, 0.1),
        output_bytes=np.full(4, 1e6),
        extra={"weight_bytes": np.full(4, 1e6)},
        time_unit="ms",
        cluster=accelerators_and_cpus(2, 0),
    )
    save(workload, folder / "w.json")
    plan = solve(workload, problem=Throughput(split="contiguous"), method="dp").plan
    assert plan is not None
    save(plan, folder / "p.json", workload)
    (folder / "m.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Linear(2, 2)\n"
    )
    w, p, o = (str(folder / name) for name in ("w.json", "p.json", "out.json"))
    (folder / "records").mkdir()
    header = ",".join(field.name for field in fields(InstanceRecord))
    (folder / "records" / "records.csv").write_text(f"{header}\n")
    submit_record(
        folder / "p.json",
        folder / "records",
        folder,
        instance="w.json",
        asked="as it is",
        command="",
    )
    recording = _recording(plan.workload_fingerprint, plan.placement.tolist())
    (folder / "r.json").write_text(json.dumps(recording))
    model = f"{folder / 'm.py'}:make"
    return {
        "solve": [w, "--method", "greedy", "--time-limit", "2"],
        "verify": [w, p],
        "simulate": [w, p, "--microbatches", "2"],
        "explain": [w, p, "--time-limit", "0.2", "--most", "1"],
        "diff": [p, p],
        "estimate": ["llama3.2-1b", "--cluster", "h100:8", "--global-batch", "64"],
        "compare": [w, "-o", str(folder / "t.csv"), "--methods", "greedy"],
        "learn": [
            "-o", str(folder / "l.npz"), "--family", "chain", "--count", "1", "--seconds", "0.1",
        ],
        "profile": [model, "-o", o, "--estimate", "h100", "--input", "2"],
        "run": [p, "--model", model, "--steps", "1"],
        "measure": ["-o", o],
        "report": [w, p, str(folder / "r.json")],
        "export": [p, "--to", "csv", "--workload", w, "-o", o],
        "export-model": [w, "-o", str(folder / "m.lp")],
        "checkpoint merge": [str(folder / "kept"), "-o", str(folder / "m.pt")],
        "records list": ["--records", str(folder / "records")],
        "records check": ["--records", str(folder / "records"), "--instances", str(folder)],
        "records submit": [
            p, "--records", str(folder / "records"), "--instances", str(folder),
            "--instance", "w.json",
        ],
        "instances list": [],
        "instances show": [w],
        "instances convert": [w, o],
    }  # fmt: skip


def options_of(command: str) -> Iterator[tuple[str, bool]]:
    """Yield the options of a command, and its arguments; and whether it is an option."""
    first, *rest = command.split()
    found = cli.load_command(first)
    for name in rest:
        found = found.commands[name]
    for parameter in found.params:
        if parameter.param_type_name == "argument":
            yield parameter.name, False
        elif not parameter.is_flag and parameter.name != "help":
            yield parameter.opts[-1], True


def attack(command: str, given: list[str], option: str, is_option: bool, value: str) -> Outcome:
    """Run a command with one option, or its first argument, replaced."""
    words = command.split()
    if is_option:
        arguments = [*words, *_without(given, option), f"{option}={value}"]
    else:
        arguments = [*words, *given[1:], "--", value] if given else words
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err), made_once():
            code = cli.run_command(arguments)
    except BaseException as error:
        return Outcome(1, f"{type(error).__name__}: {str(error)[:200]}")
    said = err.getvalue()
    if code not in (0, 2, 3, 4):
        return Outcome(code, f"exit code {code}")
    if code == 2:
        lines = [line for line in said.splitlines() if line.strip()]
        if len(lines) != 1 or not lines[0].startswith("error: ") or not lines[0].isprintable():
            return Outcome(code, f"it says {said[:200]!r}")
        if len(lines[0]) > 6000:
            return Outcome(code, f"its line has {len(lines[0])} characters")
    return Outcome(code)


@contextmanager
def made_once() -> Iterator[None]:
    """Take the command line that is made, without the warnings that only tests see."""
    with patch.object(cli, "app", COMMANDS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def no_cases_run(case: Case) -> Row:
    """Stand in for the process of a case of `compare`."""
    return {**case.names, "status": "crashed", "error": "none run"}


def _without(given: list[str], option: str) -> list[str]:
    short = {"--output": "-o"}.get(option, option)
    for name in (option, short):
        if name in given:
            at = given.index(name)
            return given[:at] + given[at + 2 :]
    return given


def _recording(fingerprint: str, placement: list[int]) -> dict[str, Any]:
    actions = [
        {"step": 0, "action": f"0F{m}", "start_s": float(m), "end_s": m + 0.5} for m in range(2)
    ]
    return {
        "format": "stagecut-recording", "version": 1, "workload_fingerprint": fingerprint,
        "placement": placement, "schedule": "inference", "microbatches": 2,
        "ranks": [{"rank": 0, "host": "h", "device": "cpu", "actions": actions}],
    }  # fmt: skip
