"""From recorded steps to a graph of operators."""
