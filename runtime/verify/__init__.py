"""The verifier: objective, rules and bounds of plans by definition, a module per problem."""
