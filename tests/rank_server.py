"""What ranks need, loaded once: imported in the process that they are copies of."""

import execution_cases  # noqa: F401
import loop_workers
import run_workers
import torch
import training_run_cases

from stagecut.runtime.execution.loop import stage_chain
from stagecut.runtime.schedules import validate

torch.set_num_threads(1)
RANKS = [[0, 1], [2]]
for name in ("1f1b", "pipedream"):  # loads the compiled kernels
    validate(loop_workers.schedule_of(name, RANKS, 3, 2), stage_chain(RANKS, 3, training=True))
run_workers.profiled()
for name in ("gpt", "mlp", "unet"):
    training_run_cases.profiled(name)
