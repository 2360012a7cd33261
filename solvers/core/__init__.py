"""Machinery of all solvers: searches, methods, processes, integer programs, lattices of ideals."""
