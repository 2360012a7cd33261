"""Chains of stages, device by device: what several stages of a device do together."""
