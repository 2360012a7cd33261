"""What ranks need, loaded once: imported in the process that they are copies of."""

import loop_workers
import run_workers  # noqa: F401
import torch.fx.experimental.symbolic_shapes  # noqa: F401  # autograd imports it when first used

from stagecut.runtime.execution.loop import stage_chain
from stagecut.runtime.schedules import validate

RANKS = [[0, 1], [2]]
for name in ("1f1b", "pipedream"):  # loads the compiled kernels
    validate(loop_workers.schedule_of(name, RANKS, 3, 2), stage_chain(RANKS, 3, training=True))
