"""Annealing towards targets, the starts it begins from, and descents."""
