"""What ranks need, loaded once: imported in the process that they are copies of.

Nothing here may run autograd: builds of torch for GPUs cannot be copied after it. Nor may anything
start a thread, of which a copy would have what it holds alone: so nothing is traced or solved here.
"""

import gc
import threading

import degree_cases  # noqa: F401
import execution_cases  # noqa: F401
import job_cases  # noqa: F401
import loop_workers
import mapped_run_cases  # noqa: F401
import model_cases  # noqa: F401
import plan_workers  # noqa: F401
import run_workers  # noqa: F401
import sharded_workers  # noqa: F401
import torch
import torch.export._trace  # imported when a model is traced
import torch.fx.experimental.symbolic_shapes  # autograd imports it when first used
import training_run_cases  # noqa: F401

import stagecut.api.solve
import stagecut.runtime.execution.stage_modules
import stagecut.solvers.registry  # noqa: F401
from stagecut.runtime.execution.own_loop.loop import stage_chain
from stagecut.runtime.schedules import validate

torch.set_num_threads(1)
RANKS = [[0, 1], [2]]
for name in ("1f1b", "pipedream"):  # loads the compiled kernels
    validate(loop_workers.schedule_of(name, RANKS, 3, 2), stage_chain(RANKS, 3, training=True))

# Ranks collect their own garbage only, and seldom: looking through all that is loaded here takes
# each a fifth of a second, and copies it.
gc.set_threshold(50_000, 20, 20)
gc.freeze()
assert threading.active_count() == 1
