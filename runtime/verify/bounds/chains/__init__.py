"""Bounds of contiguous splits, checked by all chains of stages."""
