"""PyTorch models as workloads: traced, recorded, grouped and priced; needs the extra `runtime`.

`profile.py` is the entry. The modules follow the data: `tracing/trace.py` (module → fx graph; parts
that `torch.export` rejects in `tracing/around.py`), `record.py` (fx graph → recording of every
step, forward and backward), `../operator_graph.py` (steps → operators), `recorded_model.py` (the
graph checked against a run of the model), `operator_times.py` (times of operators),
`../to_workload.py`.
"""
