"""Model factories, device descriptions and reference figures."""
