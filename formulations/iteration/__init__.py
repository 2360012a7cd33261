"""The time of an iteration of a pipeline under a schedule."""
