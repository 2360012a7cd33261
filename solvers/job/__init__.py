"""Training jobs: search over layouts; of a graph, over its pipelines."""
