"""Explanations of plans: limiting device, costly transfers, remedies, places of nodes.

`explain.py` is the front door; `explanation.py` and `answers.py` have what it returns, and
`words.py` says it; `limiting.py`, `crossings.py`, `remedies.py`, `feasibility.py` and `moves.py`
answer a question each.
"""
