"""Explanations of plans: limiting device, costly transfers, remedies, places of nodes."""
