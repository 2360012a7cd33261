"""Operators on parts of tensors: what one device of a mesh computes, and exchanges with others."""
