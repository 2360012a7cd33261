"""Contiguous splits of graphs that are a series of small parts: what is between their ends."""
