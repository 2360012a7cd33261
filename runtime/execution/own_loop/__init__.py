"""Executor of plans of pieces: loop, messages, weight versions and tensor-parallel groups."""
