"""The simulator: a plan over time, on devices and links."""
