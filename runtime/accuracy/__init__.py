"""Accuracy of predictions: recorded runs joined with their simulations."""
