"""Sharding: what operators and conversions cost, and the programs that choose."""
