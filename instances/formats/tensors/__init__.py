"""Tensor programs and shardings in our own JSON."""
