"""Verification of plans: objective and rules by definition, a module per problem, and bounds."""
