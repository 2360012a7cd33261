"""Execution of plans on PyTorch. Needs the extra `runtime`.

`prepare.py` makes pieces of a plan and a model (`split.py` cuts the graph, `chain.py` gives them to
schedules and simulator); `stage.py` is a piece at work, with `backward.py` for split
backward passes; `gradients.py` adds up what ranks share and clips. One loop (`own_loop/loop.py`)
runs the pieces of a rank: `own_loop/transport.py` moves data in the order of the schedule,
`own_loop/versions.py` keeps weights, `own_loop/teams.py` has who computes a stage of a tensor
degree together. `trainer.py` runs batches, `run.py` is the front door.

Layouts of training jobs run in `job/`, on torch's own parallelism; `torch_pipelining.py` is the
only home of torch's private names. Shardings run in `sharded/`. All three take their steps in
`steps.py`, with checkpoints of `checkpoint.py` in folders of `checkpoint_folder.py`; `guard/` keeps
the ranks together and tells the first error.
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
