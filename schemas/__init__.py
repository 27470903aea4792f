"""The contract between stages: one module per artifact, and the store that keeps them."""
