"""Rules for placements: what they leave of a problem, as tasks without them."""
