"""Methods for sharding."""
