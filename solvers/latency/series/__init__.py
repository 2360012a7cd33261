"""Latency of graphs that are a series of regions: a bound and plans, near-linear in size."""
