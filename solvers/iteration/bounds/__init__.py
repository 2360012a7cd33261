"""Bounds of an iteration by the paths of its schedule."""
