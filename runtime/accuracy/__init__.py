"""Predicted against measured: a recorded run joined with its simulation."""
