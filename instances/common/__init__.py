"""Shared basics: errors, units, named options, escapes, arrays and compiled kernels."""
