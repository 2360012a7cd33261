"""Pictures, pages and traces of plans and simulations."""
