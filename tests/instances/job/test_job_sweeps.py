"""Choices among measured layouts: of sweeps whose measurements are made from predictions."""

import csv
import importlib
import math
import sys

import pytest
from project import ROOT

ROW = {
    "sweep": "someone:8B", "source": "NVIDIA/Megatron-LM", "model": "Llama-3-8B", "gpu": "H100",
    "gpus": "16", "gpus_per_node": "8", "seq": "8192", "global_batch": "64", "precision": "BF16",
    "zero": "1 (distributed optimizer)", "recompute": "none", "schedule": "1f1b", "status": "ok",
    "micro_batch": "1",
}  # fmt: skip
#: Tensor and pipeline degrees.
DEGREES = ((1, 1), (2, 1), (4, 1), (2, 2), (8, 1))


@pytest.fixture
def choose(monkeypatch):
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("published_rows", "published_runs", "job_sweeps"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("job_sweeps")


def swept(choose, rows):
    """Return the sweeps of rows."""
    runs, refused = choose.cases([{**ROW, "id": str(i), **row} for i, row in enumerate(rows)])
    assert not refused
    return choose.sweeps(choose.judge(runs)[0])


def rows_of(times):
    return [
        {"tp": str(t), "pp": str(p), "dp": str(16 // (t * p)), "iter_s": str(seconds)}
        for (t, p), seconds in zip(DEGREES, times, strict=True)
    ]


def predicted(choose):
    """Return what the costs say of the degrees, which all fit or not."""
    (sweep,) = swept(choose, rows_of([1.0] * len(DEGREES)))
    order = {(one.layout.tensor, one.layout.pipeline): one.run for one in sweep.layouts}
    return [order[degrees] for degrees in DEGREES]


def test_what_fits_and_is_predicted_fastest_is_taken(choose):
    runs = predicted(choose)
    fitting = [run.time.seconds if run.fits else math.inf for run in runs]
    first = min(range(len(runs)), key=lambda i: fitting[i])
    measured = [2.0 + i for i in range(len(runs))]
    (sweep,) = swept(choose, rows_of(measured))
    assert sweep.taken.seconds == measured[first]
    assert sweep.best.seconds == 2.0
    assert sweep.regret == pytest.approx(measured[first] / 2 - 1)
    assert sweep.spread == 3.0
    near = [i for i in range(len(runs)) if fitting[i] <= (1 + choose.CLOSE) * fitting[first]]
    near = sorted(near, key=lambda i: fitting[i])[: choose.MOST]
    assert sweep.close_regret == pytest.approx(min(measured[i] for i in near) / 2 - 1)
    true = [run.time.seconds for run in runs]
    (sweep,) = swept(choose, rows_of(true))
    assert min(sweep.layouts, key=lambda one: abs(one.error)).error == pytest.approx(0, abs=1e-4)


def test_a_layout_that_ran_several_times_counts_with_the_median(choose):
    rows = rows_of([3.0] * len(DEGREES))
    again = [{**rows[0], "iter_s": str(seconds)} for seconds in (9.0, 2.0)]
    (sweep,) = swept(choose, rows + again)
    assert len(sweep.layouts) == len(DEGREES)
    by_degree = {(one.layout.tensor, one.layout.pipeline): one.seconds for one in sweep.layouts}
    assert by_degree[DEGREES[0]] == 3.0


def test_what_ran_out_of_memory_is_infinitely_bad(choose):
    runs = predicted(choose)
    fits = [i for i, run in enumerate(runs) if run.fits]
    first = min(fits, key=lambda i: runs[i].time.seconds)
    rows = rows_of([3.0] * len(DEGREES))
    rows[first] |= {"status": "oom", "iter_s": ""}
    (sweep,) = swept(choose, rows)
    assert sweep.regret == math.inf
    assert sweep.spread == 1.0


def test_software_and_batches_are_no_choices(choose):
    rows = rows_of([3.0] * len(DEGREES))
    assert swept(choose, rows[:2]) == []
    rows[0]["global_batch"] = "128"
    rows[1]["source"] = "microsoft/Megatron-DeepSpeed"
    (sweep,) = swept(choose, rows)
    assert len(sweep.layouts) == len(DEGREES) - 2


def test_the_table_names_revision_and_machine(choose, monkeypatch, tmp_path, capsys):
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        rows = [{**ROW, "id": str(i), **r} for i, r in enumerate(rows_of([3, 4, 5, 6, 7]))]
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    out = tmp_path / "sweeps.csv"
    arguments = ["job_sweeps.py", str(tmp_path / "runs.csv"), "--csv", str(out), "--features"]
    monkeypatch.setattr(sys, "argv", arguments)
    choose.main()
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert float(row["regret"]) >= 0
    assert row["revision"]
    assert "cores" in row["machine"]
    assert "| someone | tensor | 1 → 2 | 1 |" in capsys.readouterr().out
