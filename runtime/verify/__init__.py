"""The verifier: what a plan is by definition, a module per problem."""
