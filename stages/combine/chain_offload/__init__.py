"""Chains with a link to the host: what leaves and comes back, the planners, their simulator."""

from tightfit.util.code_cache import remove_stale_cache

remove_stale_cache(__file__)
