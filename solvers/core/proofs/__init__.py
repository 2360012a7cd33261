"""Proofs that hold whatever a solver's tolerances are: safe bounds, exact searches."""
