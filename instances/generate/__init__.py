"""Generated and fetched workloads: architectures, roofline, catalogue, published suites."""
