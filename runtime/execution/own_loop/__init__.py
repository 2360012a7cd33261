"""Executor of actions for schedules that torch cannot express."""
