"""From a model to a tensor program: its training graph, and the ways to split each operator."""
