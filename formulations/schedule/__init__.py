"""The order of a pipeline's passes: the integer program."""
