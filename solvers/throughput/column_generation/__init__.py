"""Prices that prove bounds: column generation and what it needs."""
