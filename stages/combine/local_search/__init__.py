"""The local search that improves a sequence of executions."""

from tightfit.util.code_cache import remove_stale_cache

remove_stale_cache(__file__)
