"""Any PyTorch model as a workload: traced, recorded, grouped, priced. Needs the extra `runtime`.

`profile.py` is the front door. The modules follow the data: `trace.py` (module → fx graph; what
`torch.export` rejects in `fallback.py`), `record.py` and `engine.py` (fx graph → what every step
does, forward and backward), `operators.py` (steps → operator graph), `layers.py` (operators →
layers), `estimate.py` or `timing.py` (their times), `to_workload.py`.
"""
