"""How devices are connected: topologies, routes, links and what they carry."""
