"""Searches for plans of least latency; `auto` is the strategy."""
