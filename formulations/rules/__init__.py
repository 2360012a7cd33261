"""Rules for placements: reductions of tasks with rules to tasks without."""
