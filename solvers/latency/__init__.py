"""Searches for latency: `auto` tells the strategy."""
