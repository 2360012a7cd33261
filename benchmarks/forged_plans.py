"""Changed plans and forged certificates: none is accepted for what it is not.

    PYTHONPATH=.dev python benchmarks/forged_plans.py --cases 3000 --certificates 1000

If a changed plan is accepted, all its claims are still true by the definition: a node went to a
device that is as good, or an option changed that makes no difference.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from forgery import certified, changed, fate, forged, is_refused, plans


def main() -> None:
    """Change plans, forge certificates, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=3000, help="changed plans")
    parser.add_argument("--certificates", type=int, default=1000, help="forged ones")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        found = plans()
        for k in range(options.cases):
            rng = random.Random(f"{options.seed} plan {k}")
            workload, plan = found[k % len(found)]
            try:
                what: str = fate(workload, changed(workload, plan, rng), Path(name))
            except Exception as error:
                what = "defect"
                print(f"plan {k}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            counts.setdefault(plan.problem.name, Counter())[what] += 1
    proved = certified(min(60, options.certificates))
    for k in range(options.certificates):
        workload, _, plan, best = proved[k % len(proved)]
        rng = random.Random(f"{options.seed} certificate {k}")
        try:
            what = "refused" if is_refused(workload, forged(plan, best, rng)) else "defect"
        except Exception as error:
            what = "defect"
            print(f"certificate {k}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        counts.setdefault("certificates", Counter())[what] += 1
    print("| | changed | refused | still true | defects |\n|---|---|---|---|---|")
    for kind, count in counts.items():
        row = [count.total(), *(count[what] for what in ("refused", "true", "defect"))]
        print(f"| {kind} | {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    main()
