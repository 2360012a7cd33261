"""Data model: workloads, clusters, problems, solutions, plans, and their costs."""
