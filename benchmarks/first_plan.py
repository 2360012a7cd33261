"""From a fresh clone to the first plan of an own model: wall and CPU seconds of each step.

    python benchmarks/first_plan.py [--repository .]

Packages come from pip's cache, so run the program once beforehand to fill it. The caches of
compiled kernels and of measured times begin empty. Prints a Markdown table. The target is 90 s on
two cores.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: An own model: what a user writes.
MODEL = '''
import torch
from torch import nn


def model():
    """A small transformer with a loss, and a microbatch."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)

    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(1000, 128)
            self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.head = nn.Linear(128, 1000)

        def forward(self, x, y):
            return nn.functional.cross_entropy(self.head(self.encoder(self.embed(x))).mT, y)

    return Tiny(), (torch.randint(0, 1000, (4, 32)), torch.randint(0, 1000, (4, 32)))
'''


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", default=str(Path(__file__).parents[1]))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone, python = Path(folder, "clone"), str(Path(folder, "env", "bin", "python"))
        Path(folder, "mine.py").write_text(MODEL)
        stagecut = [python, "-m", "stagecut"]
        steps = {
            "git clone": ["git", "clone", "--quiet", options.repository, str(clone)],
            "python -m venv": [sys.executable, "-m", "venv", str(Path(folder, "env"))],
            "pip install": [
                python, "-m", "pip", "install", "--quiet", "--no-compile",
                "-c", str(clone / "constraints.txt"), f"{clone}[runtime]",
            ],
            "profile": [*stagecut, "profile", "mine.py:model", "--train", "-o", "mine.json"],
            "solve": [*stagecut, "solve", "mine.json", "--accelerators", "2", "-o", "plan.json"],
        }  # fmt: skip
        caches = {"NUMBA_CACHE_DIR": "numba", "XDG_CACHE_HOME": "cache"}
        fresh = {key: str(Path(folder, name)) for key, name in caches.items()}
        print("| step | wall s | CPU s |\n|---|---|---|")
        total = [0.0, 0.0]
        for name, command in steps.items():
            own = {} if name == "pip install" else fresh  # pip's cache is below XDG_CACHE_HOME
            spent = seconds(command, folder, own)
            total = [a + b for a, b in zip(total, spent, strict=True)]
            print(f"| {name} | {spent[0]:.1f} | {spent[1]:.1f} |", flush=True)
        print(f"| together | {total[0]:.1f} | {total[1]:.1f} |")


def seconds(command: list[str], folder: str, environment: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU seconds of a command, which must succeed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    others = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if key not in others}
    done = subprocess.run(
        command, check=False, cwd=folder, env={**kept, **environment}, capture_output=True,
        text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin, cpu


if __name__ == "__main__":
    main()
