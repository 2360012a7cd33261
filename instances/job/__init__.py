"""Training jobs: the problem of training a model on a cluster, and its layouts."""
