"""Searches for mappings: `auto` tells the strategy."""
