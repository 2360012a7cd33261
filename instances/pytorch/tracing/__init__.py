"""Tracing of modules to fx graphs, also where `torch.export` fails."""
