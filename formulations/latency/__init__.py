"""Latency of one request: units, calls, the integer program."""
