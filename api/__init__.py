"""Python interface: solve, simulate, run and compare, a module for each."""
