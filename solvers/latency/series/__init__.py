"""Graphs that are a series of regions between separators: a bound and plans, near-linear in size."""
