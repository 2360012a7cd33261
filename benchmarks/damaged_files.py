"""Damaged files of every format: each is refused in one line, or means the same when saved again.

PYTHONPATH=.dev python benchmarks/damaged_files.py --cases 10000
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from damage import damaged, outcome
from good_files import samples
from good_torch_files import torch_samples


def main() -> None:
    """Damage files and print how many of each format were refused, harmless, or a defect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="over all formats")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {**samples(folder), **torch_samples(folder)}
        for k in range(options.cases):
            form = list(found)[k % len(found)]
            rng = random.Random(f"{options.seed} {form} {k}")
            content = damaged(found[form].content, rng)
            try:
                what: str = outcome(found[form], content, folder)
            except Exception as error:
                what = "defect"
                print(f"{form}, case {k}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            counts.setdefault(form, Counter())[what] += 1
    print("| format | damaged | refused | harmless | defects |\n|---|---|---|---|---|")
    for form, count in {**counts, "all": sum(counts.values(), Counter())}.items():
        row = [count.total(), *(count[what] for what in ("refused", "harmless", "defect"))]
        print(f"| {form} | {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    main()
