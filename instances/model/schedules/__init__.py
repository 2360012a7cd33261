"""Schedules as data: actions, orders that users give, and how long they may be."""
