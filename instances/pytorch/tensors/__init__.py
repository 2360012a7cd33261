"""Tensor programs of models: training graphs, and signatures of each ATen operator."""
