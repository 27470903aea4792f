"""Benchmarks: what takes time is measured here, never in a test. Run with `make bench`."""
