"""Bounds and mappings by integer programs: blocks, rings, messages."""
