"""Searches for the best order of a pipeline's passes."""
