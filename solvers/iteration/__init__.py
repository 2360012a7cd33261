"""Methods for the time of an iteration."""
