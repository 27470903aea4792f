"""Chains with a link to the host: what leaves and comes back, the planners, their referee."""
