"""Measuring the machines: latency and bandwidth between ranks, fitted to what messages take."""
