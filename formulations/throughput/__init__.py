"""Throughput: hypergraph form, ideals, compact program, set partitioning."""
