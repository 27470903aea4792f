"""Pipelines of real models in processes, which take too long for the tests."""
