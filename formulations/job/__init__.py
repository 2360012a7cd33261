"""Training jobs: streams of microbatches, and iterations under a schedule."""
