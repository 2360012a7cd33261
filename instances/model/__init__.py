"""The nouns: workloads, clusters, problems, solutions, plans, and what they cost."""
