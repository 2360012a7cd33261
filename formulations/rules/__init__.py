"""Placement rules: reductions of tasks with rules to tasks without."""
