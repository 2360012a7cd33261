"""Mapping of stages and replicas to a topology: costs, conditions, programs."""
