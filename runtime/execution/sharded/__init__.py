"""Execution of shardings: operators on shards of tensors, and exchanges between devices."""
