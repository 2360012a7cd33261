"""From a module to an fx graph, whatever `torch.export` says."""
