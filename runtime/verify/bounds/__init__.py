"""Bounds checked apart from the searches that claim them."""
