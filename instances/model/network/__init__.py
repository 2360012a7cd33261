"""Networks of devices: topologies, routes and links."""
