"""Chains: positions with their ways, the dynamic programs that plan them, their simulator."""
