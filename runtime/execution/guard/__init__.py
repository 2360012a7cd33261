"""Ranks kept together: whatever fails on one ends all, and is said once."""
