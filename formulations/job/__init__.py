"""Training jobs: layouts and bounds and programs over them; of a graph, its pipelines."""
