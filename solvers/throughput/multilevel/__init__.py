"""Multilevel planning: solve a coarse graph, then refine near the boundaries of its stages."""
