"""Training jobs on PyTorch's own parallelism: FSDP2, DTensor, and its pipeline schedules.

`parallelize.py` makes the modules of a rank from a model and a layout: device mesh, stages, tensor
and sequence parallelism, recomputation, FSDP2; `context.py` is attention over divided sequences,
`experts.py` sends tokens to the ranks of their experts. `running.py` runs batches, `run.py` jobs.
"""
