"""Damaged files, changed plans, forged certificates, nonsense options: refused in one line.

The same at length: `benchmarks/damaged_files.py`.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from damage import damaged, outcome
from forgery import certified, changed, fate, forged, is_refused, plans
from good_files import samples
from nonsense import COMMANDS, NONSENSE, attack, commands, no_cases_run, options_of

from stagecut.api import cases

#: Those that need no torch, which takes seconds to import.
QUICK = (
    "solve", "verify", "simulate", "explain", "diff", "compare", "report", "export",
    "export-model", "instances list", "instances show", "instances convert", "records list",
    "records check", "records submit",
)  # fmt: skip


def test_damaged_files_are_refused_or_say_the_same_when_saved_again(tmp_path: Path) -> None:
    found = samples(tmp_path)
    for name, sample in found.items():
        rng = random.Random(f"whole {name}")
        assert outcome(sample, sample.content, tmp_path) == "harmless", name
        seen = Counter(outcome(sample, damaged(sample.content, rng), tmp_path) for _ in range(40))
        assert seen["refused"] > 15 or name == "compare record", (name, seen)


def test_damaged_files_that_torch_reads_are_refused_or_harmless(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra `runtime` is not installed")
    from good_torch_files import torch_samples

    for name, sample in torch_samples(tmp_path).items():
        rng = random.Random(f"torch {name}")
        assert outcome(sample, sample.content, tmp_path) == "harmless", name
        seen = Counter(outcome(sample, damaged(sample.content, rng), tmp_path) for _ in range(40))
        assert seen["refused"] > 15, (name, seen)


def test_changed_plans_are_refused_or_still_true(tmp_path: Path) -> None:
    found = plans()
    seen: Counter[str] = Counter()
    for k in range(150):
        rng = random.Random(f"plan {k}")
        workload, plan = found[k % len(found)]
        seen[fate(workload, changed(workload, plan, rng), tmp_path)] += 1
    assert seen["refused"] > 100
    assert not seen["defect"]


def test_no_forged_certificate_proves_a_bound() -> None:
    proved = certified(3)
    assert len(proved) == 3
    for k in range(24):
        workload, _, plan, best = proved[k % len(proved)]
        if k < len(proved):
            assert not is_refused(workload, plan)
        assert is_refused(workload, forged(plan, best, random.Random(f"certificate {k}")))


@pytest.mark.parametrize("command", QUICK)
def test_nonsense_options_end_in_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "run_case", no_cases_run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {**os.environ, "COLUMNS": "80"})
    given = commands(tmp_path)[command]
    rng = random.Random(command)
    for option, is_option in options_of(command):
        for value in rng.sample(NONSENSE, 2):
            result = attack(command, given, option, is_option, value)
            assert not result.defect, (option, value, result)


def test_no_command_is_left_out_of_the_attacks(tmp_path: Path) -> None:
    attacked = {command.split()[0] for command in commands(tmp_path)}
    assert attacked | {"warm"} == set(COMMANDS.commands)  # warm has no options
