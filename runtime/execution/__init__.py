"""A plan runs on PyTorch. Needs the extra `runtime`.

The modules follow the data: `prepare.py` makes pieces of a plan and a model (`split.py` cuts the
graph, `chain.py` gives the same pieces to schedules and simulator); `stage.py` is a piece at work,
with `backward.py` for split backward passes; `pipeline.py` has the stages of a rank
(`torch_pipelining.py` is the only home of torch's private names, `messages.py` moves data,
`gradients.py` adds up what ranks share); `recorder.py` notes what happened when.

Beside it is our own loop (`own_loop/loop.py`) for what torch cannot express: `own_loop/mail.py`
moves data in the order of the schedule, `own_loop/versions.py` keeps weights,
`own_loop/training_pieces.py` cuts training plans. `guard/failures.py` keeps the ranks together
(`guard/board.py` holds what they tell each other, `guard/blame.py` says who is named when they
fail, `guard/identity.py` what they must have alike); `checkpoint.py` writes and reads; `trainer.py`
puts steps of either executor behind one face. `options.py` has what users say, `run.py` is the
front door.
"""
