"""Training jobs: the space of layouts, and bounds and programs over it."""
