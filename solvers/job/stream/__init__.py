"""Streams of microbatches: the best stages, replicas, degrees and configurations."""
