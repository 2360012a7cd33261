"""A plan runs on PyTorch. Needs the extra `runtime`.

The modules follow the data: `split.py` (traced model + placement → a module per piece), `run.py`
is the front door.
"""
