"""What is measured on a GPU: rows say which kernel or rank they are of, and the costs know each."""

from __future__ import annotations

import sys

import pytest
from project import ROOT

pytest.importorskip("torch")
sys.path.append(str(ROOT / "benchmarks"))
import gpu_fit
import gpu_kernels
import gpu_ranks
import results

from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.clusters import accelerator
from stagecut.instances.costs.layout import Layout, Software
from stagecut.instances.costs.memory import rank_memory
from stagecut.instances.costs.models import shipped_model

H100 = accelerator("h100")
TABLE = calibration("h100", Software.STAGECUT)


def test_a_row_names_its_kernel() -> None:
    found = gpu_kernels.kernels(0, small=False)
    assert len(set(found)) == len(found) > 300
    for one in found:
        assert gpu_kernels.parsed(one.what, one.text) == one
        assert 1e-6 < gpu_kernels.predicted(one, H100, TABLE) < 1


def test_rows_of_the_tables_are_predicted_as_the_costs_say_now() -> None:
    for row in results.read("gpu_kernels")[::40]:
        one = gpu_kernels.parsed(row["what"], row["shape"])
        seconds = gpu_kernels.predicted(one, H100, TABLE)
        assert 1e6 * seconds == pytest.approx(float(row["predicted_us"]), rel=1e-4)
    for row in results.read("gpu_ranks")[::4]:
        for name, value in gpu_ranks.predicted_again(row, H100).items():
            if name in row:
                assert value == pytest.approx(float(row[name]), rel=1e-4, abs=1e-12), name


def test_the_rows_that_judge_are_near() -> None:
    """The median of kernels within 7 %, and every peak of a rank without experts within 3 %."""
    errors = sorted(map(abs, gpu_fit.kernel_errors(results.read("gpu_kernels")[1::2], TABLE)))
    assert errors[len(errors) // 2] < 0.07
    for row in gpu_fit.dense(results.read("gpu_ranks")):
        measured = float(row["measured_peak_gib"])
        assert float(row["predicted_peak_gib"]) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(("zero", "divided"), [(0, 1), (1, 8), (2, 8), (3, 8)])
def test_fsdp2_divides_what_the_optimizer_updates_under_every_stage(
    zero: int, divided: int
) -> None:
    """And gathers all weights once for both passes below ZeRO 3: in 16 bits beside 32."""
    model = shipped_model("llama3.2-1b")
    layout = Layout(data=8, zero=zero, global_batch=8, recipe="fsdp-bf16", software="stagecut")  # type: ignore[arg-type]
    memory = rank_memory(model, layout)
    assert memory.parameters == pytest.approx(4 * model.parameters / divided)
    whole = 2.0 * model.parameters
    assert memory.gathered == pytest.approx(whole) if zero < 3 else memory.gathered < whole
