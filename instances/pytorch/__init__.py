"""Any PyTorch model as a workload: traced, recorded, grouped, priced. Needs the extra `runtime`.

`profile.py` is the front door; `matching.py` finds the granularity that a plan was made at, to run
it. Both take a model apart and put its profile together by `parts.py`. The modules follow the data:
`trace.py` (module → fx graph; what `torch.export` rejects in `fallback.py`), `record.py` and
`engine.py` (fx graph → what every step does, forward and backward), `operators.py` (steps →
operator graph), `layers.py` (operators → layers), `prices.py` (their times, by `estimate.py`, or by
`timing.py` and `correct.py`), `to_workload.py`.
"""
