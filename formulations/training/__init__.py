"""Training plans: stages, slots, the integer program."""
