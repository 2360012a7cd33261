"""Several searches of one solve at a time: which they are, where they run, what they share."""
