"""Measurements of links and devices: latency and bandwidth between ranks, matrix products."""
