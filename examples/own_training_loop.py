"""A training loop of your own around a plan: data, learning rates, evaluation, checkpoints.

    stagecut solve MODEL --cluster h100:8 --global-batch 64 --for stagecut -o job.json
    torchrun --nproc-per-node 8 own_training_loop.py job.json checkpoints 100

Started again, it goes on behind the newest checkpoint, under another plan if you name one.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import stagecut
from stagecut.instances.job.plan import JobPlan
from stagecut.runtime.execution.checkpoint_folder import checkpoints
from stagecut.runtime.execution.job.run import restore_job, save_job
from stagecut.runtime.execution.job.running import parallelize
from stagecut.runtime.execution.job.transformer import transformer

WARM_UP, EVERY = 5, 10


def batches(plan: JobPlan, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Load whole batches, the same on every rank; put your data set here."""
    draw = torch.Generator().manual_seed(seed)
    size = (4 * plan.layout.global_batch, plan.layout.sequence + 1)
    words = torch.randint(0, plan.model.vocabulary, size, generator=draw).sort()[0]
    data = TensorDataset(words[:, :-1], words[:, 1:])
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, plan.layout.global_batch, shuffle=True, generator=order)
    while True:
        yield from loader


def rate(step: int, steps: int) -> float:
    """Return the learning rate's factor: a warm-up, then a cosine."""
    return min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2


def main(file: str, folder: Path, steps: int) -> None:
    """Train for as many steps in all, and evaluate and keep checkpoints on the way."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    plan = stagecut.load_job_plan(file)
    model, modules = transformer(plan.model)  # or your model, with a ParallelizePlan of it
    job = parallelize(model, modules, plan)
    optimizers = [torch.optim.AdamW(job.parameter_groups(s), lr=1e-2) for s in job.stages]
    schedulers = [LambdaLR(each, lambda step: rate(step, steps)) for each in optimizers]
    done = 0
    if found := checkpoints(folder):
        restore_job(found[-1], job, optimizers)
        done = int(found[-1].name.removeprefix("step-"))
        for scheduler in schedulers:
            scheduler.last_epoch = done
    held_out = next(batches(plan, seed=1))
    for number, (tokens, targets) in zip(range(steps), batches(plan, seed=0), strict=False):
        if number < done:
            continue  # seen before the checkpoint
        loss = job.step(tokens, targets)
        norm = job.clip_gradients(1.0)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        if (number + 1) % EVERY == 0 or number + 1 == steps:
            valid = job.evaluate(*held_out)
            save_job(folder / f"step-{number + 1:08}", job, optimizers)
            if dist.get_rank() == 0:
                print(f"step {number + 1} loss {loss:.6f} norm {norm:.4f} valid {valid:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
