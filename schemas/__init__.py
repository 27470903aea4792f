"""The contract between stages: one module per artifact, and the store that reads and writes them."""
