"""Tensor programs, meshes of devices, and the problem of sharding one over the other."""
