"""Our own loop, for what torch's schedules cannot express."""
