"""Training jobs: what is asked of a model on a cluster, and the layouts that may answer."""
