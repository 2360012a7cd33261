"""Multilevel: solve a coarse graph, then refine where its stages meet."""
