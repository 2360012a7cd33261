"""The statements: what is minimised, under which rules, one module per problem."""
