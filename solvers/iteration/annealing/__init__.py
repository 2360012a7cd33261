"""Chains of stages by simulated annealing."""
