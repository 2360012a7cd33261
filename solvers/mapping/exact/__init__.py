"""Exact mapping to few devices, sets of devices as bits."""
