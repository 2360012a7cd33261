"""Searches for training plans: `auto` tells the strategy."""
