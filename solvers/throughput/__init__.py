"""Searches for splits of least max-load; `auto` is the strategy."""
