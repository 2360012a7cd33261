"""Workloads that are made or fetched: architectures, roofline, catalogue, suites."""
