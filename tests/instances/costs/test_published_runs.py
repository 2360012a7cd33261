"""The judge of published runs: its figures of runs whose measurements are made from predictions."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from project import ROOT

KEYS = {
    "n", "refused", "median_abs_error", "p90_abs_error", "spearman_median", "spearman_min",
    "regret_median", "regret_max", "memory_median_abs_error", "fits_accuracy",
}  # fmt: skip
ROW = {
    "sweep": "someone:8B", "source": "NVIDIA/Megatron-LM", "model": "Llama-3-8B", "gpu": "H100",
    "gpus": "16", "gpus_per_node": "8", "seq": "8192", "global_batch": "64", "precision": "BF16",
    "zero": "1 (distributed optimizer)", "recompute": "none", "schedule": "1f1b", "status": "ok",
}  # fmt: skip
LAYOUTS = [
    (t, p, b) for t in (1, 2, 4) for p in (1, 2, 4) for b in (1, 2) if 64 * t * p % (16 * b) == 0
]


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("published_rows", "published_runs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("published_runs")


def written(path: Path, measured: dict[tuple[int, int, int], float]) -> Path:
    """Write a row per layout with its measured seconds, and one that is refused."""
    rows = [
        {
            **ROW, "id": str(i), "tp": str(t), "pp": str(p), "dp": str(16 // (t * p)),
            "micro_batch": str(b), "iter_s": str(seconds), "peak_mem_gb": "40",
        }
        for i, ((t, p, b), seconds) in enumerate(measured.items())
    ]  # fmt: skip
    rows.append({**ROW, "id": "none", "gpu": "abacus", "tp": "1", "iter_s": "1"})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, sorted(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def run(
    judge: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, measured: dict[Any, float]
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return the figures of the source and the rows that the script writes."""
    runs = written(folder / "runs.csv", measured)
    figures, rows = folder / "figures.json", folder / "rows.csv"
    arguments = ["published_runs.py", str(runs), "--json", str(figures), "--csv", str(rows)]
    monkeypatch.setattr(sys, "argv", arguments)
    judge.main()
    with rows.open(newline="", encoding="utf-8") as file:
        return json.loads(figures.read_text())["someone"], list(csv.DictReader(file))


def test_figures_of_runs_as_predicted(
    judge: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Measured times in the predicted order, then reversed: errors, rank, regret are those made."""
    first, rows = run(judge, monkeypatch, tmp_path, dict.fromkeys(LAYOUTS, 1.0))
    predicted = [float(row["predicted_s"]) for row in rows if row["predicted_s"]]
    assert len(predicted) == len(LAYOUTS) == first["n"]
    assert first["refused"] == 1
    assert "abacus" in rows[-1]["refused"]
    assert set(first) == KEYS

    longer = {layout: 1.25 * time for layout, time in zip(LAYOUTS, predicted, strict=True)}
    found, _ = run(judge, monkeypatch, tmp_path, longer)
    assert found["median_abs_error"] == pytest.approx(0.2, abs=1e-3)
    assert found["spearman_min"] == 1.0
    assert found["regret_max"] == 0.0

    most, least = max(predicted), min(predicted)
    turned = {layout: 1 / time for layout, time in zip(LAYOUTS, predicted, strict=True)}
    found, _ = run(judge, monkeypatch, tmp_path, turned)
    assert found["spearman_median"] == -1.0
    assert found["regret_max"] == pytest.approx(most / least - 1, abs=1e-3)
