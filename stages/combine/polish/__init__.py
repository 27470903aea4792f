"""The local search that improves a sequence of executions."""
