"""Search over the layouts of a training job."""
