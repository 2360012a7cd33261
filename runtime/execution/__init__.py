"""Execution: a plan runs on PyTorch, and what it did is written down."""
