"""What limits a plan, what its transfers cost, what would help, why a node is where it is.

`explain.py` is the front door; `explanation.py` and `answers.py` have what it returns, and
`words.py` says it; `limiting.py`, `crossings.py`, `remedies.py`, `feasibility.py` and `moves.py`
answer a question each.
"""
