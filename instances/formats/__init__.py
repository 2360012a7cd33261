"""File formats: a module for each, and `files`, which finds the format of a file."""
