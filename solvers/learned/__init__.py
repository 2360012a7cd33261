"""Learned placement: a policy of neural networks places a graph; trained by PPO. Needs torch."""
