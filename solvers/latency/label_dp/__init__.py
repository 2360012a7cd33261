"""The label DP over ideals: latency to proven optimality."""
