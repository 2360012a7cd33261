"""The front door in Python: solve, simulate, run and compare, a module for each."""
