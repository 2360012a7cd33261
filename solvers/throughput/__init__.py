"""Searches for throughput: `auto` tells the strategy."""
