"""Statements of the problems: objectives, constraints and bounds, a folder for each."""
