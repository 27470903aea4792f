"""Schedules from a tree decomposition of a step (Kumar et al. 2019)."""
