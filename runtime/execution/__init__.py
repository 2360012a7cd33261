"""Execution of plans on PyTorch. Needs the extra `runtime`.

`prepare.py` makes pieces of a plan and a model (`split.py` cuts the graph, `chain.py` makes stages
of them for schedules and simulator); `stage.py` runs the passes of a piece, with `backward.py` for
split backward passes; `gradients.py` adds gradients up over ranks and clips them; `attention.py`
fits attention to PyTorch's kernels. One loop
(`own_loop/loop.py`) runs the pieces of a rank: `own_loop/transport.py` moves data in the order of
the schedule, `own_loop/versions.py` keeps versions of weights, `own_loop/tensor_groups.py` has the
tensor-parallel groups of stages. `trainer.py` runs batches, `run.py` whole runs.

Layouts of training jobs run in `job/`, on torch's own parallelism; `torch_pipelining.py` is the
only home of private names of `torch.distributed.pipelining`. Shardings run in `sharded/`. All three
take their steps in `steps.py`, with checkpoints of `checkpoint.py` in folders of
`checkpoint_folder.py`; `guard/` ends all ranks if one fails, and shows the first error.
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
