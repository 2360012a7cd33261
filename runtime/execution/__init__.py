"""Execution of plans on PyTorch. Needs the extra `runtime`.

The modules follow the data: `prepare.py` makes pieces of a plan and a model (`split.py` cuts the
graph, `chain.py` gives the same pieces to schedules and simulator); `stage.py` is a piece at work,
with `backward.py` for split backward passes, and notes what happened when; `gradients.py` adds up
what ranks share and clips. One loop (`own_loop/loop.py`) runs the pieces of a rank:
`own_loop/transport.py` moves data in the order of the schedule, `own_loop/versions.py` keeps
weights, `own_loop/training_pieces.py` cuts training plans, `own_loop/teams.py` has who computes a
stage of a tensor degree together. `guard/failures.py` keeps the ranks together and tells the first
error, `guard/identity.py` what all ranks must have alike; `checkpoint.py` writes and restores
in `checkpoint_folder.py` (`model_state.py` merges); `trainer.py` runs batches through the loop.
`options.py` has what users say, `steps.py` what every run does, `first_step.py` compares with one
process, `run.py` is the front door.

Layouts of training jobs run in `job/`, on torch's own parallelism; `torch_pipelining.py` is the
only home of torch's private names.

Shardings run in `sharded/`: `prepare.py` traces the training graph again, `program.py` gives each
node its signatures, `trainer.py` is one device at work, with `operators.py` on its `parts.py`;
`local.py` is what it computes on them, `collectives.py` what it exchanges; `recording.py` keeps
what was done. `stage.py` runs the layers of a pipeline's stage so.
"""

from __future__ import annotations

from ...instances.common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "guard.failures": "guarded",
    "own_loop.loop": "Loop stage_chain",
    "recording_file": "load_recording",
    "stage_modules": "StageModule clip_gradients tied_gradients",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
