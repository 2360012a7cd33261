"""Iterations under a schedule: chains of stages, and placements in pieces."""
