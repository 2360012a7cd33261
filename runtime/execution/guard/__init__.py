"""Failure handling of ranks: a failure on one ends all, reported once."""
