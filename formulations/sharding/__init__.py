"""Sharding: costs of operators and conversions, and programs over the choices."""
