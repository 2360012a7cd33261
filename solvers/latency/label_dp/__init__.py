"""The label DP over downsets: latency to proven optimality."""
