"""What all searches share: clock, incumbent, limits, registry, integer programs."""
