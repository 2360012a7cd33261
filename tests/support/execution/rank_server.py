"""What ranks need, loaded once: imported in the process that they are copies of.

Nothing here may run autograd: builds of torch for GPUs cannot be copied after it.
"""

import execution_cases  # noqa: F401
import loop_workers
import plan_workers  # noqa: F401
import run_workers  # noqa: F401
import torch
import torch.fx.experimental.symbolic_shapes  # autograd imports it when first used
import training_run_cases  # noqa: F401

from stagecut.runtime.execution.own_loop.loop import stage_chain
from stagecut.runtime.schedules import validate

torch.set_num_threads(1)
RANKS = [[0, 1], [2]]
for name in ("1f1b", "pipedream"):  # loads the compiled kernels
    validate(loop_workers.schedule_of(name, RANKS, 3, 2), stage_chain(RANKS, 3, training=True))
