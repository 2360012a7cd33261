"""Every option of every command with nonsense values: exit code 2 and one line, no traceback.

    PYTHONPATH=.dev python benchmarks/nonsense_options.py

A value that an option accepts (any text is a name) is counted as accepted.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from nonsense import NONSENSE, attack, commands, no_cases_run, options_of

from stagecut.api import cases as of_comparisons


def main() -> None:
    """Run every command with every value and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, help="as many of them, drawn at random; default: all")
    parser.add_argument("--commands", nargs="*", help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    of_comparisons.run_case = no_cases_run
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        found = commands(Path(name))
        cases = [
            (command, *option, value)
            for command in options.commands or found
            for option in options_of(command)
            for value in NONSENSE
        ]
        if options.cases is not None:
            cases = random.Random(options.seed).sample(cases, min(options.cases, len(cases)))
        for command, option, is_option, value in cases:
            result = attack(command, found[command], option, is_option, value)
            what = {0: "accepted", 2: "refused"}.get(result.code, "no plan")
            if result.defect:
                what = "defect"
                print(f"{command} {option} {value[:40]!r}: {result.defect}", flush=True)
            counts.setdefault(command, Counter())[what] += 1
    print("| command | cases | refused | accepted | no plan | defects |\n|---|---|---|---|---|---|")
    for command, count in {**counts, "all": sum(counts.values(), Counter())}.items():
        row = [count[what] for what in ("refused", "accepted", "no plan", "defect")]
        print(f"| {command} | {' | '.join(map(str, [count.total(), *row]))} |")


if __name__ == "__main__":
    main()
