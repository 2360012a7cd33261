"""Layouts of whole models on one GPU: seconds of an iteration and peak memory beside the costs.

A sweep is a model with its batch: every microbatch and recomputation, and the layout that `solve`
takes. Training is real, on random tokens: whole models, all microbatches, AdamW. No profiler runs
in this process, since after a profile the host takes longer for every launch.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import gpu_ranks
import torch
from gpu_ranks import GIB

import stagecut
from stagecut.instances.costs.calibration import Calibration
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.layout import Layout, Software
from stagecut.instances.costs.models import shipped_model
from stagecut.runtime.execution.job.running import RunningJob
from stagecut.runtime.execution.job.transformer import transformer

WARM_UP, STEPS = 1, 2
#: Models, with sequence length and sequences per iteration.
SWEEPS = {
    "llama3.2-1b": (4096, 8),
    "gpt2-xl": (1024, 32),
    "qwen3-0.6b": (4096, 8),
    "llama3.2-3b": (4096, 4),
    "gemma2-2b": (4096, 4),
}
#: What is recomputed.
RECOMPUTED: tuple[tuple[str, ...], ...] = ((), ("op",), ("full",))
#: Layouts whose prediction is so far above the memory are not tried.
FAR = 1.25


@dataclass(frozen=True)
class LayoutCase:
    """A model, whole, and how one GPU trains it."""

    model: str
    layout: Layout

    @property
    def text(self) -> str:
        """Layout as the table shows it."""
        one = self.layout
        words = [f"microbatch {one.microbatch}"]
        if one.recompute and one.recompute_layers != 0:
            layers = "" if one.recompute_layers is None else f" in {one.recompute_layers} layers"
            words.append(f"recompute {' '.join(sorted(one.recompute))}{layers}")
        return ", ".join(words)


def layout_of(model: str, microbatch: int, recompute: tuple[str, ...]) -> Layout:
    sequence, batch = SWEEPS[model]
    return Layout(
        microbatch=microbatch,
        global_batch=batch,
        sequence=sequence,
        recompute=frozenset(recompute),  # type: ignore[arg-type]  # their names will do
        recipe="fsdp-bf16",  # type: ignore[arg-type]
        software=Software.STAGECUT,
    )


def cases(chip: str) -> Iterator[LayoutCase]:
    """Yield the layouts of every sweep, and the planned one if it is another."""
    for model, (sequence, batch) in SWEEPS.items():
        swept = [
            LayoutCase(model, layout_of(model, microbatch, recompute))
            for microbatch in (1, 2, 4, 8)
            if batch % microbatch == 0
            for recompute in RECOMPUTED
        ]
        yield from swept
        job = stagecut.TrainingJob(global_batch=batch, sequence=sequence, launcher="stagecut")
        found = stagecut.solve(model, f"{chip}:1", job)
        if found.plan is not None:
            planned = LayoutCase(model, found.plan.layout)
            if planned.text not in {one.text for one in swept}:
                yield planned


def case_of(row: Mapping[str, str]) -> LayoutCase:
    """Return the case of a row."""
    first, _, rest = row["layout"].partition(", recompute ")
    microbatch = int(first.removeprefix("microbatch "))
    return LayoutCase(row["model"], layout_of(row["model"], microbatch, tuple(rest.split())))


def predicted(one: LayoutCase, chip: str, table: Calibration | None = None) -> dict[str, float]:
    """Return what the costs say: seconds of an iteration, of its terms, and GiB."""
    found = stagecut.estimate(one.model, one.layout, f"{chip}:1", calibration=table)
    terms = ("products", "attention", "pointwise", "recomputation", "host", "optimizer")
    return {
        "predicted_s": found.seconds,
        **{f"predicted_{term}_s": found.terms[term] for term in terms},
        "predicted_peak_gib": found.memory[0].allocated / GIB,
        "predicted_fits": float(found.fits),
    }


def measured(
    layout: Layout, model: ModelDescription, device: torch.device
) -> dict[str, float | None]:
    """Train some iterations; return the median seconds and the peak GiB, none if it is too much."""
    try:
        with gpu_ranks.fake_group(1):
            return _measured(layout, model, device)
    except torch.OutOfMemoryError:
        return {"measured_s": None, "measured_peak_gib": None, "measured_reserved_gib": None}
    finally:
        gc.collect()  # modules and their hooks hold each other
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measured(
    layout: Layout, model: ModelDescription, device: torch.device
) -> dict[str, float | None]:
    cuda = device.type == "cuda"
    before = gpu_ranks.held_now(device)
    torch.manual_seed(0)
    made, plan = transformer(model)
    job = RunningJob(made, replace(plan, initialize=gpu_ranks.fill), layout, device=device)
    for name, parameter in job.named_parameters():
        gpu_ranks.fill(name, parameter)
    parameters = [group for stage in job.stages for group in job.parameter_groups(stage)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=cuda)
    shape = (layout.global_batch, layout.sequence)
    x, y = (torch.randint(model.vocabulary, shape, device=device) for _ in range(2))
    seconds = []
    for _ in range(WARM_UP + STEPS):
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad()
        job.step(x, y)
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() - before if cuda else None
    kept = torch.cuda.max_memory_reserved() if cuda else None
    return {
        "measured_s": statistics.median(seconds[WARM_UP:]),
        "measured_peak_gib": None if peak is None else peak / GIB,
        "measured_reserved_gib": None if kept is None else kept / GIB,
    }


def compared(
    one: LayoutCase, device: torch.device, chip: str, small: bool
) -> Mapping[str, object] | None:
    """Return the row of a case, predicted beside measured; none if it is hopeless to try."""
    said = predicted(one, chip)
    room = stagecut.training_cluster(f"{chip}:1").accelerator.memory_bytes / GIB
    if said["predicted_peak_gib"] > FAR * room:
        return None
    layout, model = one.layout, shipped_model(one.model)
    if small:
        model = gpu_ranks.shrunk(replace(model, blocks=model.blocks[:2]))
        layout = replace(layout, sequence=64, recompute_layers=None)
    seen = measured(layout, model, device)
    return {"model": one.model, "layout": one.text, **said, **seen}


def predicted_again(row: Mapping[str, str], chip: str) -> dict[str, object]:
    """Return what the costs say of the layout of a row."""
    return dict(predicted(case_of(row), chip))
