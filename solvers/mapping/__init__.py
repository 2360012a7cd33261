"""Searches for mappings: `strategy` tells which come after which."""
