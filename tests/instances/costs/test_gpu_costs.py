"""What is measured on a GPU: rows say which kernel or rank they are of, and the costs know each."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from project import ROOT

pytest.importorskip("torch")
sys.path.append(str(ROOT / "benchmarks"))
import gpu_fit
import gpu_kernels
import gpu_layouts
import gpu_ranks
import results
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.clusters import accelerator, training_cluster
from stagecut.instances.costs.hardware import Accelerator
from stagecut.instances.costs.layers import LayerPrices, Setting, _issued, block_parts
from stagecut.instances.costs.layout import Layout, Software
from stagecut.instances.costs.memory import rank_memory
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.costs.stages import stage_times
from stagecut.runtime.execution.job.transformer import transformer

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
        seconds = gpu_kernels.predicted(one, chip_of(row), TABLE)
        assert 1e6 * seconds == pytest.approx(float(row["predicted_us"]), rel=1e-4)
    for row in results.read("gpu_ranks")[::4]:
        for name, value in gpu_ranks.predicted_again(row, chip_of(row)).items():
            if name in row:
                assert value == pytest.approx(float(row[name]), rel=1e-4, abs=1e-12), name
    for row in results.read("gpu_layouts")[::4]:
        for name, value in gpu_layouts.predicted_again(row, chip_of(row).name).items():
            assert value == pytest.approx(float(row[name]), rel=1e-4, abs=1e-12), name


def chip_of(row: results.Row) -> Accelerator:
    """Return the device that a row was measured on."""
    return accelerator(row["machine"].partition(", ")[2])


def test_the_rows_that_judge_are_near() -> None:
    """The median of kernels within 8 %, and every peak of a rank without experts within 3 %.

    Of whole models the median iteration within 11 %, every peak within 4 %.
    """
    errors = sorted(map(abs, gpu_fit.kernel_errors(results.read("gpu_kernels")[1::2], TABLE)))
    assert errors[len(errors) // 2] < 0.08
    for row in gpu_fit.dense(results.read("gpu_ranks")):
        measured = float(row["measured_peak_gib"])
        assert float(row["predicted_peak_gib"]) == pytest.approx(measured, rel=0.03)
    layouts = gpu_fit.trained(results.read("gpu_layouts"))[1::2]
    errors = sorted(map(abs, gpu_fit.layout_errors(layouts, TABLE)))
    assert errors[len(errors) // 2] < 0.11
    for row in layouts:
        measured = float(row["measured_peak_gib"])
        assert float(row["predicted_peak_gib"]) == pytest.approx(measured, rel=0.04)


#: Operations of PyTorch that launch nothing.
VIEWS = {
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "split", "unsqueeze",
    "detach", "alias", "unbind",
}  # fmt: skip


class Launches(TorchDispatchMode):
    """Count of operations that launch a kernel."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += operation.overloadpacket.__name__ not in VIEWS
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["gpt2", "llama3.2-1b", "qwen3-0.6b"])
def test_forward_kernels_are_those_that_modules_launch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a block: the difference of two and of one, root-mean-square norms as one kernel each."""
    monkeypatch.setattr(
        torch.nn.RMSNorm,
        "forward",
        lambda norm, x: torch.nn.functional.layer_norm(x, norm.normalized_shape, norm.weight),
    )
    model, counts = shipped_model(name), []
    for layers in (1, 2):
        made, _ = transformer(replace(model, blocks=model.blocks[:layers], vocabulary=8))
        made = made.to_empty(device="cpu").to(torch.bfloat16)
        with Launches() as launches, torch.no_grad():
            made(torch.zeros(1, 64, dtype=torch.int64))
        counts.append(launches.count)
    layout = Layout(global_batch=1, software="stagecut", recipe="fsdp-bf16")  # type: ignore[arg-type]
    parts = block_parts(Setting(layout, training_cluster("h100:1"), TABLE), model.blocks[0], 1)
    # positions, which a model makes once, and a copy that only CPUs need
    assert sum(part.kernels for part in parts) == pytest.approx(counts[1] - counts[0], abs=3)


def test_kernels_of_both_passes_are_near_those_that_ran() -> None:
    """Of ranks with several layers; what is left is of embedding, head, loss and FSDP2."""
    for row in gpu_fit.dense(results.read("gpu_ranks")):
        one = gpu_ranks.case_of(row)
        if one.layers < 4 or one.layout.recompute or one.layout.tensor > 1:
            continue
        model, at = one.description(), Setting(one.layout, training_cluster("h100:8"), TABLE)
        kernels = [_issued(part, at) for part in block_parts(at, model.blocks[0], model.hidden)]
        counted = one.layers * sum(map(sum, kernels))
        assert 0.65 < counted / float(row["measured_kernels"]) < 1


def test_what_is_recomputed_keeps_the_host_busy() -> None:
    """Of narrow layers in short sequences, where the device waits for the host."""
    model, cluster = shipped_model("gpt2-xl"), training_cluster("h100:1")
    taken = {}
    for name in ((), ("full",), ("op",)):
        layout = Layout(recompute=name, global_batch=1, sequence=128, software="stagecut")  # type: ignore[arg-type]
        taken[name] = stage_times(layout, LayerPrices(model, cluster, TABLE))[0].backward
    layers = len(model.blocks)
    assert taken["full",] - taken[()] > layers * TABLE.checkpointed
    assert taken["op",] > taken["full",]


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
